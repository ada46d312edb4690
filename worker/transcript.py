"""The journal of an LLM step as the loop reads and writes it (CAP-054, CAP-060).

Every round of the step's loop is rows before the next model call is made, so a step goes on where its last committed
round left it, and no stored reply is ever asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from blackboard.replies import ReplyBoard
from events.types import EventName
from llm.arguments import KEPT_ID, MAX_NAME
from llm.types import LLMMessage, LLMResponse
from loop.history import PastTurn, build_history
from loop.ports import Journal, StoredCall
from observability.models import AgentInteraction
from observability.queries import usage_of
from observability.services import record_interaction
from observability.types import CallOwner, Interaction
from plan import services
from plan.errors import OutcomeInvalid, SynthesisQualityError
from plan.models import ExecutionPlan, PlanStep, StepKind, StepMessage, StepStatus
from plan.outcomes import outcome_of
from prompt.builder import canonical_json
from prompt.types import AgentIdentity
from tools.membership import is_member
from tools.runs import RunRef
from tools.types import Envelope, ToolContext, idempotency_key
from tools.units import Arrow, Unit, unit
from worker.errors import OwnerGone, SliceOver

NOTES_FROM = 1_000  # positions of the loop's notes, after every result of their round


@dataclass(slots=True)
class StepRows:
    """One step of a claimed plan, as rounds of calls need it.

    Args:
        run: the claimed plan.
        slots: how many further steps may start when this one ends.
        settled: how the plan goes on, once the step has ended or waits.
    """

    run: RunRef
    plan: ExecutionPlan
    step: PlanStep
    identity: AgentIdentity
    slots: Callable[[], int]
    settled: services.Settled | None = None
    owner: CallOwner = field(init=False)

    def __post_init__(self) -> None:
        self.owner = CallOwner(
            kind="step",
            id=self.step.pk,
            workspace_id=self.plan.workspace_id,
            user_id=self.plan.owner_id,
            correlation_id=self.plan.correlation_id,
            conversation_id=self.plan.conversation_id,
            plan_id=self.plan.pk,
        )

    def unit(self) -> AbstractContextManager[Unit]:
        """The plan's next unit."""
        return unit(self.run)

    def tool_context(self, *, round: int, position: int) -> ToolContext:  # noqa: A002  # a round is a round
        """Who calls: the plan's owner, whatever the model says (CAP-036).

        The idempotency key of a copied step's call is that of the step it was copied from.
        """
        line = self.step.origin_id or self.step.pk
        return ToolContext(
            user=self.plan.owner,
            workspace=self.plan.workspace,
            identity=self.identity,
            mode="workflow",
            owner_kind="step",
            owner_id=self.step.pk,
            round=round,
            position=position,
            correlation_id=self.plan.correlation_id,
            idempotency_key=idempotency_key("step", line, round, position),
            now=timezone.now(),
            conversation_id=self.plan.conversation_id,
            turn_id=self.plan.turn_id,
            plan_id=self.plan.pk,
            step_id=self.step.pk,
            stream_id=self.plan.stream_id,
        )

    def park(self, unit: Unit) -> None:
        """Calls of the step wait for a person; the plan waits too when nothing else can go on."""

        def change() -> None:
            if PlanStep.objects.wait_for_approval(self.step.pk):
                self.step.status = StepStatus.WAITING_APPROVAL
                services.record_step(self.step, events=unit)

        self.close(unit, change)

    def close(self, unit: Unit, change: Callable[[], None]) -> None:
        """Let the unit end with `change` to the step's row and with how the plan goes on, under the locks."""

        def closing() -> Arrow | None:
            change()
            self.settled = services.settle(plan_id=self.plan.pk, events=unit, slots=self.slots())
            return self.settled.arrow

        unit.close_with(closing)


@dataclass(slots=True)
class DataStep(StepRows):
    """The rows of a data step: one call, made without a model; its envelope ends the step (CAP-053)."""

    def store_result(self, unit: Unit, *, round: int, stored: StoredCall, envelope: Envelope, content: str) -> None:  # noqa: A002
        """What the call answered is what the step left."""

        def change() -> None:
            if envelope["success"]:
                services.complete_step(step=self.step, result=envelope["result"], synthesis="", events=unit)
            else:
                services.fail_step(step=self.step, error=envelope["error"] or "the tool failed", events=unit)

        self.close(unit, change)


@dataclass(slots=True, kw_only=True)
class StepTranscript(StepRows):
    """Fills `loop.ports.Transcript` for an LLM step.

    Args:
        leaving: says whether the owner wants to leave the plan now; asked between two rounds.
    """

    leaving: Callable[[], bool]
    _rounds_here: int = 0
    _board: ReplyBoard = field(init=False)

    def __post_init__(self) -> None:
        StepRows.__post_init__(self)
        self._board = ReplyBoard(kept=self.identity.blackboard)

    def journal(self) -> Journal:
        """Where the step stands, read afresh."""
        rows = list(StepMessage.objects.filter(step_id=self.step.pk, round__gt=0).order_by("round", "position"))
        replies = [row for row in rows if row.role == "assistant"]
        if not replies:
            return Journal()
        last = replies[-1]
        results = {row.position: row for row in rows if row.role == "tool" and row.round == last.round}
        stored = tuple(
            StoredCall(call=call, position=position, envelope=_envelope(results.get(position)))
            for position, call in enumerate(last.tool_calls, start=1)
        )
        used = usage_of(AgentInteraction.objects.filter(owner_kind="step", owner_id=self.step.pk))
        return Journal(
            rounds=last.round,
            open_calls=stored if any(one.envelope is None for one in stored) else (),
            calls=tuple(
                (call["name"], canonical_json(call["arguments"])) for row in replies for call in row.tool_calls
            ),
            tokens=used.tokens,
            cost_usd=used.cost_usd,
        )

    def messages(self) -> Sequence[LLMMessage]:
        """What the step was asked, its rounds, and nothing else.

        Raises:
            SliceOver: the owner leaves the plan here, between two rounds.
            OwnerGone: whose plan it is is no active member of the workspace any more.
        """
        if self._rounds_here and self.leaving():
            raise SliceOver(plan=self.plan.pk, step=self.step.key)
        if not is_member(self.plan.owner_id, self.plan.workspace_id):
            raise OwnerGone(plan=self.plan.pk, step=self.step.key)
        rows = StepMessage.objects.filter(step_id=self.step.pk).order_by("round", "position")
        return build_history([PastTurn(self.step.pk, tuple(row.as_message() for row in rows))])

    def store_reply(self, unit: Unit, *, round: int, response: LLMResponse, interaction: Interaction) -> None:  # noqa: A002
        """The assistant message with its calls, and the interaction row."""
        self._rounds_here += 1
        text = self._board.take(response.content)
        StepMessage.objects.create(
            step=self.step,
            round=round,
            position=0,
            role="assistant",
            text=text,
            tool_calls=list(response.tool_calls or []),
            thinking=response.thinking,
            blocks=response.blocks,
            model=response.model or interaction.model,
            provider=interaction.provider,
            stop_reason=response.stop_reason,
        )
        record_interaction(interaction)
        self._keep_board(unit)

    def store_note(self, unit: Unit, *, round: int, text: str) -> None:  # noqa: A002
        """What the loop itself told the model before round `round`."""
        place = StepMessage.objects.filter(step_id=self.step.pk, round=round - 1, position__gte=NOTES_FROM).count()
        StepMessage.objects.create(step=self.step, round=round - 1, position=NOTES_FROM + place, role="note", text=text)

    def store_result(self, unit: Unit, *, round: int, stored: StoredCall, envelope: Envelope, content: str) -> None:  # noqa: A002
        """The result of one call as the model will read it."""
        StepMessage.objects.create(
            step=self.step,
            round=round,
            position=stored.position,
            role="tool",
            text=content,
            tool_call_id=stored.call["id"][:KEPT_ID],
            tool_name=stored.call["name"][:MAX_NAME],
            is_error=not envelope["success"],
        )

    def finish(self, unit: Unit, *, text: str, stop_reason: str, notice: str = "", plan_id: int | None = None) -> None:
        """The step's loop is over: its text is the synthesis, and the plan goes on from there."""
        said = self._board.visible(text)
        self.close(unit, lambda: self._complete(unit, text=said, stop_reason=stop_reason, notice=notice))

    def close(self, unit: Unit, change: Callable[[], None]) -> None:
        """As of every step; the reply's board goes with it."""

        def both() -> None:
            self._store_board()
            change()

        StepRows.close(self, unit, both)

    def _keep_board(self, unit: Unit) -> None:
        """Store a reply's board on the plan in the reply's own commit; a bad one keeps the old (CAP-072, CAP-073)."""
        told = self._board.told
        if told is None:
            return
        run = f"step:{self.step.pk}"
        unit.record(EventName.BLACKBOARD, run=run, plan_id=self.plan.pk, step=self.step.key, **told)
        unit.after_commit(self._board.stored)
        unit.close_with(self._store_board)

    def _store_board(self) -> None:
        if self._board.written is not None:
            ExecutionPlan.objects.filter(pk=self.plan.pk).update(board=self._board.written)

    def _complete(self, unit: Unit, *, text: str, stop_reason: str, notice: str) -> None:
        last = StepMessage.objects.filter(step_id=self.step.pk, role="assistant").order_by("-round").first()
        model = last.model if last is not None else ""
        result: dict[str, Any] = {"text": services.clipped(text)}
        if notice:
            result["notice"] = notice
        try:
            outcome = outcome_of(text) if self.step.kind == StepKind.ASSESSMENT else None
            services.complete_step(
                step=self.step,
                result=result if outcome is None else {**result, **outcome},
                synthesis=services.clipped(text),
                events=unit,
                model_used=model,
                stop_reason=stop_reason,
                outcome=outcome,
            )
        except (SynthesisQualityError, OutcomeInvalid) as exc:
            services.fail_step(step=self.step, error=str(exc), events=unit, model_used=model, stop_reason=stop_reason)


def _envelope(row: StepMessage | None) -> Envelope | None:
    if row is None:
        return None
    return Envelope(success=not row.is_error, result=row.text, error=row.text if row.is_error else None)
