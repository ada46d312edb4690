"""The turns before a turn, as its requests hold them: grouped, windowed, condensed (CAP-041)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chat.errors import NoMember
from chat.models import Conversation, HistorySummary, Message, Turn
from chat.queries import ended_plans
from llm.errors import LLMCancelled, LLMError
from llm.types import LLMMessage
from loop.condense import condense
from loop.history import PastTurn, Window
from loop.model_call import ModelCaller, keep_paid
from loop.ports import Journal, StoredCall
from loop.settings import loop_settings
from observability.models import AgentInteraction
from observability.queries import usage_of
from observability.services import record_interaction
from prompt.builder import CLOSING, OPENING, canonical_json
from tools.membership import is_member
from tools.runs import RunRef
from tools.types import Envelope
from tools.units import Unit, in_unit

logger = logging.getLogger(__name__)

CUT_OFF = "(cut off here by the user)"
ENDED = "plans_ended"  # in layer 4


def grouped(turns: Sequence[Turn], rows: Sequence[Message]) -> list[PastTurn]:
    """The rows as turns; a new try's question, which is another turn's row, is counted to the try."""
    by_turn: dict[int, list[Message]] = {turn.pk: [] for turn in turns}
    asked = {turn.question_id: turn.pk for turn in turns}
    for row in rows:
        place = asked.get(row.pk, row.turn_id)
        if place in by_turn:
            by_turn[place].append(row)
    return [PastTurn(turn.pk, tuple(as_sent(row, turn) for row in by_turn[turn.pk])) for turn in turns]


def as_sent(row: Message, turn: Turn) -> LLMMessage:
    """A row as the model gets it: layer 4 behind the question, a mark behind what was cut off."""
    message = row.as_message()
    behind = turn.dynamic if row.pk == turn.question_id else CUT_OFF if row.partial else ""
    return replace(message, content=f"{message.content}\n\n{behind}") if behind else message


def refuse_stranger(turn: Turn) -> None:
    """Ask the database, before each model call, whether the turn's author is still an active member (CAP-036).

    Raises:
        NoMember: the author is not.
    """
    if not is_member(turn.user_id, turn.workspace_id):
        raise NoMember(turn=turn.pk, user=turn.user_id)


def window_now() -> Window:
    """How much of the history goes along, from the settings."""
    own = loop_settings()
    return Window(turns=own.window_turns, tokens=own.window_tokens, result_chars=own.result_chars)


def holds_summary(turn: Turn, dynamic: str, *, version: int) -> bool:
    """Whether what the turn is told of the snapshot is a summary in place of the whole.

    Args:
        dynamic: its layer 4; where that repeats no snapshot, it is what an earlier message of the window says.
        version: of the snapshot.
    """
    snapshot = _inside(dynamic).get("snapshot")
    if snapshot is not None:
        return bool(snapshot.get("summary", {}).get("reason") == "over_budget")
    earlier = Turn.objects.filter(conversation_id=turn.conversation_id, snapshot_version=version).order_by("-pk")
    return bool(earlier.values_list("snapshot_is_summary", flat=True).first())


def envelope_of(row: Message | None) -> Envelope | None:
    """A stored result as the loop asks for it."""
    if row is None:
        return None
    return Envelope(success=not row.is_error, result=row.text, error=row.text if row.is_error else None)


def store_summary(
    run: RunRef, gone: Sequence[PastTurn], *, earlier: str, caller: ModelCaller, budget_tokens: int
) -> bool:
    """Condense turns and store what stands for them; False when the model call failed, whose row is written.

    Raises:
        LLMCancelled: somebody cancelled meanwhile.
    """
    seconds = loop_settings().final_answer_s
    try:
        text, facts = condense(gone, caller=caller, earlier=earlier, budget_tokens=budget_tokens, deadline_s=seconds)
    except LLMCancelled:
        raise
    except LLMError as exc:
        logger.warning("run %s goes on without a summary of its older turns: %s", run.pk, exc)
        return False

    def body(unit: Unit) -> None:
        record_interaction(facts)
        HistorySummary.objects.get_or_create(
            turn_id=gone[-1].key, defaults={"text": text, "turns": len(gone), "model": facts.model}
        )

    with keep_paid(facts):
        in_unit(run, body)
    return True


def journal_of(turn_id: int) -> Journal:
    """Where a turn stands: its rounds, the calls that are open, and what it has used."""
    rows = list(Message.objects.filter(turn_id=turn_id, round__gt=0).order_by("round", "position"))
    replies = [row for row in rows if row.role == "assistant" and not row.partial]
    if not replies:
        return Journal()
    last = replies[-1]
    results = {row.position: row for row in rows if row.role == "tool" and row.round == last.round}
    stored = tuple(
        StoredCall(call=call, position=position, envelope=envelope_of(results.get(position)))
        for position, call in enumerate(last.tool_calls, start=1)
    )
    used = usage_of(AgentInteraction.objects.filter(owner_kind="turn", owner_id=turn_id))
    return Journal(
        rounds=last.round,
        open_calls=stored if any(one.envelope is None for one in stored) else (),
        calls=tuple((call["name"], canonical_json(call["arguments"])) for row in replies for call in row.tool_calls),
        tokens=used.tokens,
        cost_usd=used.cost_usd,
    )


def told_of_plans(branch: Sequence[Turn]) -> frozenset[int]:
    """The plans whose end these turns were told of: what was sent says it, whatever the clocks of the hosts say."""
    layers = [turn.dynamic for turn in branch if f'"{ENDED}":' in turn.dynamic]
    return frozenset(plan["plan_id"] for layer in layers for plan in _inside(layer).get(ENDED, ()))


def context_beside(turn: Turn, *, board: bool, told: frozenset[int]) -> dict[str, Any]:
    """What layer 4 holds beside the snapshot: the board, and the plans that ended.

    Args:
        told: the plans that are left out, as the turn's branch was told of them.
    """
    beside: dict[str, Any] = {}
    kept = Conversation.objects.filter(pk=turn.conversation_id).values_list("board", flat=True).first()
    if kept and board:
        beside["board"] = kept
    ended = ended_plans(turn.conversation_id, told=told)
    if ended:
        beside[ENDED] = ended
    return beside


def _inside(dynamic: str) -> dict[str, Any]:
    """A stored layer 4 as what it was made of."""
    inner = dynamic.removeprefix(OPENING).removesuffix(CLOSING).strip()
    return dict(json.loads(inner)) if inner else {}
