"""How a turn ends: in the closing of its last unit, under the locks of stream and run."""

from __future__ import annotations

from django.utils import timezone

from blackboard.types import Board
from chat.models import Conversation, Turn
from chat.services import ended_payload
from events.types import EventName
from llm.errors import LLMCancelled
from tools.models import ToolExecution
from tools.runs import RunStatus
from tools.services import withdraw_approvals
from tools.units import Arrow, Unit


def end_turn(
    unit: Unit,
    turn: Turn,
    *,
    to: RunStatus,
    text: str = "",
    stop_reason: str = "",
    notice: str = "",
    error: str = "",
    plan_id: int | None = None,
    model_used: str = "",
    board: Board | None = None,
) -> None:
    """End the turn when the unit closes; a cancel that came first turns a completion into a cancelled turn."""

    def closing() -> Arrow:
        arrow = to
        asked = Turn.objects.filter(pk=turn.pk, cancel_requested_at__isnull=False).exists()
        if asked and to == RunStatus.COMPLETED:
            if plan_id is not None:
                raise LLMCancelled(reason="cancel")
            arrow = RunStatus.CANCELLED
        reason = "cancelled" if arrow == RunStatus.CANCELLED else stop_reason
        changed: dict[str, object] = {"updated_at": timezone.now()}
        if board is not None:
            changed["board"] = board
        Conversation.objects.filter(pk=turn.conversation_id).update(**changed)
        withdraw_approvals(owner_kind="turn", owner_ids=[turn.pk], now=timezone.now(), events=unit)
        ToolExecution.objects.lose_open("turn", [turn.pk])
        unit.record(
            EventName.TURN_ENDED,
            **ended_payload(turn, to=arrow, stop_reason=reason, notice=notice, plan_id=plan_id),
        )
        columns: dict[str, object] = {"stop_reason": reason, "notice": notice, "error": error[:2_000]}
        if text:
            columns["answer"] = text
        if model_used:
            columns["model_used"] = model_used
        if plan_id is not None:
            columns["plan_id"] = plan_id
        return Arrow(arrow, columns)

    unit.close_with(closing)
