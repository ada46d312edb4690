"""The rows of a turn as the loop reads and writes them (CAP-040 – 042)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils import timezone

from chat.boards import TurnBoard
from chat.ending import end_turn
from chat.errors import QuestionTooLarge
from chat.hot import store_read_round
from chat.models import HistorySummary, Message, Turn
from chat.past import (
    context_beside,
    grouped,
    holds_summary,
    journal_of,
    refuse_stranger,
    store_summary,
    told_of_plans,
    window_now,
)
from chat.queries import branch_of, messages_of
from events.models import EventRecord
from events.types import EventName
from llm.arguments import KEPT_ID, MAX_NAME
from llm.errors import LLMCancelled
from llm.ports import BaseLLM, CancelToken
from llm.types import LLMMessage, LLMResponse
from loop.history import PastTurn, build_history, kept_turns, tokens_asked
from loop.model_call import ModelCaller
from loop.ports import Journal, ReadResult, StoredCall
from loop.react import NOTICES
from observability.services import record_interaction
from observability.types import CallOwner, Interaction
from prompt.types import AgentIdentity
from streaming.signals import wake
from tools.ports import dispatcher
from tools.queries import is_waiting
from tools.runs import RunRef, RunStatus
from tools.types import Envelope, ToolContext, idempotency_key
from tools.units import Arrow, Unit, in_unit, unit

FULL_SNAPSHOT = '"snapshot":'


@dataclass(slots=True)
class ChatTranscript:
    """Fills `loop.ports.Transcript` for one turn.

    Args:
        run: the claimed turn.
        turn: its row, with workspace and user.
        identity: who answers; its limits and tools.
        model: the answering model's id, for what the history may replay; empty: not checked.
    """

    run: RunRef
    turn: Turn
    identity: AgentIdentity
    model: str = ""
    owner: CallOwner = field(init=False)
    workspace_scope: str = field(init=False)
    _earlier: list[PastTurn] | None = None
    _told: frozenset[int] = frozenset()  # the plans whose end the branch was told of
    _model_used: str = ""
    _board: TurnBoard = field(init=False)
    _summary: str = ""
    _replies: dict[int, int] = field(default_factory=dict)
    _sent: tuple[LLMMessage, ...] | None = None
    _let_on: bool = False  # the commit of a moment ago saw that the author is a member; good for one request

    def __post_init__(self) -> None:
        turn = self.turn
        self._board = TurnBoard(turn=turn, kept=self.identity.blackboard)
        self.workspace_scope = turn.workspace.scope_id
        self.owner = CallOwner(
            kind="turn",
            id=turn.pk,
            workspace_id=turn.workspace_id,
            user_id=turn.user_id,
            correlation_id=turn.correlation_id,
            conversation_id=turn.conversation_id,
        )

    def has_dynamic(self) -> bool:
        """Whether layer 4 was stored: a turn that goes on after a crash replays it byte for byte."""
        return self.turn.snapshot_version is not None

    def set_dynamic(self, text: str, snapshot_version: int) -> None:
        """Store layer 4 with the user message, once."""
        is_summary = holds_summary(self.turn, text, version=snapshot_version)
        columns = {"dynamic": text, "snapshot_version": snapshot_version, "snapshot_is_summary": is_summary}

        def closing() -> None:  # the turn's own row is written under the locks of stream and run
            Turn.objects.filter(pk=self.turn.pk).update(**columns)

        in_unit(self.run, lambda unit: unit.close_with(closing))
        for name, value in columns.items():
            setattr(self.turn, name, value)
        self._sent = None

    def last_snapshot_version(self) -> int | None:
        """The version of the newest whole snapshot that goes along in the window; None when none does."""
        kept = kept_turns([*self._past(), self._own()], window=window_now())
        whole = Turn.objects.filter(pk__in=kept[:-1], dynamic__contains=FULL_SNAPSHOT).order_by("-pk")
        return whole.values_list("snapshot_version", flat=True).first()

    def extra_context(self) -> dict[str, Any]:
        """The board, and the conversation's plans that ended and that this branch was not told of (pattern 4)."""
        self._past()
        return context_beside(self.turn, board=self.identity.blackboard, told=self._told)

    def condense(self, *, llm: BaseLLM, tier: str, cancel: CancelToken) -> bool:
        """Store a summary of the turns that no longer fit; whether one was made.

        Only before the turn's first model call: the window stays where it is while a turn runs. A summary that fails
        costs nothing but itself: those turns are then left out.

        Raises:
            QuestionTooLarge: the question alone does not fit.
            LLMCancelled: somebody cancelled meanwhile.
        """
        own, window = self._own(), window_now()
        size = tokens_asked(own)
        if size > window.tokens:
            raise QuestionTooLarge(tokens=size, limit=window.tokens)
        past = self._past()
        if self.has_dynamic() or len(kept_turns([*past, own], window=window)) > len(past):
            return False
        # Down to half the window at once, so that not every turn from here on pays for a summary.
        half = replace(window, turns=max(window.turns // 2, 1), tokens=max(window.tokens // 2, size))
        kept = set(kept_turns([*past, own], window=half))
        gone = [turn for turn in past if turn.key not in kept]
        caller = ModelCaller(llm=llm, owner=self.owner, tier=tier, cancel=cancel)
        made = store_summary(self.run, gone, earlier=self._summary, caller=caller, budget_tokens=window.tokens)
        if made:
            self._earlier = None
        return made

    def journal(self) -> Journal:
        """Where the turn stands, read afresh."""
        return journal_of(self.turn.pk)

    def messages(self, *, before_round: int | None = None) -> Sequence[LLMMessage]:
        """The history to send: windowed, repaired, layer 4 in the newest user message. Raises `NoMember`.

        Args:
            before_round: as it was sent for that round; None: for the next one.
        """
        if not self._let_on:
            refuse_stranger(self.turn)
        self._let_on = False
        own = self._own() if before_round is None else self._read(before_round)
        return build_history([*self._past(), own], window=window_now(), model=self.model, summary=self._summary)

    def tool_context(self, *, round: int, position: int) -> ToolContext:  # noqa: A002  # a round is a round
        """Who calls: the signed-in user of the turn, whatever the model says (CAP-036)."""
        turn = self.turn
        return ToolContext(
            user=turn.user,
            workspace=turn.workspace,
            identity=self.identity,
            mode="conversation",
            owner_kind="turn",
            owner_id=turn.pk,
            round=round,
            position=position,
            correlation_id=turn.correlation_id,
            idempotency_key=idempotency_key("turn", turn.pk, round, position),
            now=timezone.now(),
            conversation_id=turn.conversation_id,
            turn_id=turn.pk,
            stream_id=turn.stream_id,
            snapshot_is_summary=turn.snapshot_is_summary,
        )

    def unit(self) -> AbstractContextManager[Unit]:
        """The turn's next unit."""
        return unit(self.run)

    def store_reply(self, unit: Unit, *, round: int, response: LLMResponse, interaction: Interaction) -> None:  # noqa: A002
        """The assistant message with its calls, and the interaction row."""
        self._model_used = response.model or interaction.model
        text = self._board.take(response.content)
        row = Message.objects.create(
            conversation_id=self.turn.conversation_id,
            turn_id=self.turn.pk,
            parent_id=self._parent(round),
            round=round,
            position=0,
            role="assistant",
            text=text,
            tool_calls=list(response.tool_calls or []),
            thinking=response.thinking,
            blocks=response.blocks,
            model=self._model_used,
            provider=interaction.provider,
            stop_reason=response.stop_reason,
        )
        self._replies[round] = row.pk  # a unit that runs again stores another row, and says so here
        record_interaction(interaction)
        self._say(unit, row, final=not row.tool_calls)
        self._board.keep(unit)

    def store_read_round(
        self,
        *,
        round: int,  # noqa: A002
        response: LLMResponse,
        interaction: Interaction,
        results: Sequence[ReadResult],
        events: Sequence[EventRecord],
    ) -> None:
        """A round of reads in one statement: the same rows and events as in a unit."""
        self._model_used = response.model or interaction.model
        text = self._board.take(response.content)
        parent = self._parent(round)
        assert parent is not None, f"turn {self.turn.pk} has no question"
        said = EventRecord(EventName.AI_MESSAGE, self._saying(None, round, text, final=False, partial=False))
        reply = {
            "role": "assistant",
            "text": text,
            "tool_calls": list(response.tool_calls or []),
            "thinking": response.thinking,
            "blocks": response.blocks,
            "model": self._model_used,
            "provider": interaction.provider,
            "stop_reason": response.stop_reason,
        }
        stored = store_read_round(
            self.run,
            turn=self.turn,
            parent_id=parent,
            round_number=round,
            reply=reply,
            results=[
                {
                    "position": result.stored.position,
                    "text": result.content,
                    "tool_call_id": result.stored.call["id"][:KEPT_ID],
                    "tool_name": result.stored.call["name"][:MAX_NAME],
                    "is_error": not result.envelope["success"],
                }
                for result in results
            ],
            ledger=[result.ledger for result in results],
            events=[said, *self._board.news(), *events],
            interaction=interaction,
            board=self._board.written,
        )
        self._board.stored()
        self._let_on = stored.member
        self._replies[round] = stored.pk
        wake(self.run.stream_id)
        if self._sent is not None:
            self._sent += (
                LLMMessage("assistant", text, tool_calls=tuple(stored.tool_calls), blocks=stored.blocks),
                *(
                    LLMMessage(
                        "tool",
                        result.content,
                        tool_call_id=result.stored.call["id"],
                        tool_name=result.stored.call["name"],
                        is_error=not result.envelope["success"],
                    )
                    for result in results
                ),
            )

    def store_note(self, unit: Unit, *, round: int, text: str) -> None:  # noqa: A002
        """What the loop told the model before round `round`; it stands behind all rows of the round before."""
        self._sent = None
        before = Message.objects.filter(turn_id=self.turn.pk, round=round - 1)
        Message.objects.create(
            conversation_id=self.turn.conversation_id,
            turn_id=self.turn.pk,
            parent_id=self._parent(round),
            round=round - 1,
            position=max([0, *before.values_list("position", flat=True)]) + 1,
            role="note",
            text=text,
        )

    def store_result(self, unit: Unit, *, round: int, stored: StoredCall, envelope: Envelope, content: str) -> None:  # noqa: A002
        """The result of one call as the model will read it."""
        self._sent = None
        Message.objects.create(
            conversation_id=self.turn.conversation_id,
            turn_id=self.turn.pk,
            parent_id=self._reply(round),
            round=round,
            position=stored.position,
            role="tool",
            text=content,
            tool_call_id=stored.call["id"][:KEPT_ID],
            tool_name=stored.call["name"][:MAX_NAME],
            is_error=not envelope["success"],
        )

    def finish(self, unit: Unit, *, text: str, stop_reason: str, notice: str = "", plan_id: int | None = None) -> None:
        """The turn is over: its answer, its last event and its arrow, in this commit.

        Raises:
            LLMCancelled: from the closing, when somebody cancelled before a plan was made: then there is no plan.
        """
        if plan_id is not None:
            last = Message.objects.filter(turn_id=self.turn.pk).order_by("-round").values_list("round", flat=True)[0]
            row = Message.objects.create(
                conversation_id=self.turn.conversation_id,
                turn_id=self.turn.pk,
                parent_id=self._reply(last),
                round=last + 1,
                role="assistant",
                text=text,
            )
            self._say(unit, row, final=True)
        shown = self._board.visible(text)
        if not shown.strip() and stop_reason in {"end_turn", "stop_sequence"}:  # it wrote its board and nothing else
            stop_reason, notice = "empty", NOTICES["empty"]
        end_turn(
            unit,
            self.turn,
            to=RunStatus.COMPLETED,
            text=shown,
            stop_reason=stop_reason,
            notice=notice,
            plan_id=plan_id,
            model_used=self._model_used,
            board=self._board.written,
        )

    def park(self, unit: Unit) -> None:
        """Calls wait for a person: the turn gives up its lease and waits with them."""

        def closing() -> Arrow:
            if Turn.objects.filter(pk=self.turn.pk, cancel_requested_at__isnull=False).exists():
                raise LLMCancelled(reason="cancel")  # nobody is asked on behalf of a cancelled turn
            self._board.store()
            if is_waiting("turn", self.turn.pk):
                return Arrow(RunStatus.WAITING_APPROVAL)
            dispatcher().dispatch_after_commit(Turn, self.turn.pk)  # somebody decided while this unit was open
            return Arrow(Turn.READY)

        unit.close_with(closing)

    def _say(self, unit: Unit, row: Message, *, final: bool) -> None:
        self._sent = None  # the turn's messages are read afresh
        saying = self._saying(row.pk, row.round, row.text, final=final, partial=row.partial)
        unit.record(EventName.AI_MESSAGE, **saying)

    def _saying(self, message_id: int | None, number: int, text: str, *, final: bool, partial: bool) -> dict[str, Any]:
        return {
            "run": f"turn:{self.turn.pk}",
            "turn_id": self.turn.pk,
            "message_id": message_id,
            "round": number,
            "text": text,
            "final": final,
            "partial": partial,
        }

    def _reply(self, round: int) -> int | None:  # noqa: A002
        """The key of a round's reply; remembered, since a reply does not change any more."""
        if round not in self._replies:
            rows = Message.objects.filter(turn_id=self.turn.pk, round=round, position=0, role="assistant")
            found = rows.values_list("pk", flat=True).first()
            if found is None:
                return None
            self._replies[round] = found
        return self._replies[round]

    def _parent(self, round: int) -> int | None:  # noqa: A002
        """What a reply goes on from: the reply before it, else the question."""
        return (self._reply(round - 1) if round > 1 else None) or self.turn.question_id

    def _past(self) -> list[PastTurn]:
        """The turns before this one on its branch, of the same context (CAP-042); they do not change any more."""
        if self._earlier is None:
            branch = branch_of(self.turn.after_id)
            self._told = told_of_plans(branch)
            about = (self.turn.context_type, self.turn.context_id)
            turns = [each for each in branch if (each.context_type, each.context_id) == about]
            made = HistorySummary.objects.filter(turn_id__in=[turn.pk for turn in turns]).order_by("turn_id").last()
            if made is not None:
                self._summary = made.text
                turns = [turn for turn in turns if turn.pk > made.turn_id]
            self._earlier = grouped(turns, messages_of(turns))
        return self._earlier

    def _own(self) -> PastTurn:
        """The turn's own messages: read once, and again whenever a round was stored in a unit."""
        if self._sent is None:
            self._sent = self._read().messages
        return PastTurn(key=self.turn.pk, messages=self._sent)

    def _read(self, before_round: int | None = None) -> PastTurn:
        rows = messages_of([self.turn])
        return grouped([self.turn], [row for row in rows if before_round is None or row.round < before_round])[0]
