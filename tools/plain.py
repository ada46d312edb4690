"""What is stored of a plain read, for whoever writes it together with other rows (CAP-031, CAP-101)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.calls import Outcome
from tools.ledger import BATCH_SMALL
from tools.models import ExecutionStatus
from tools.policies import Checked
from tools.results import estimated_tokens, told
from tools.settings import tool_settings
from tools.types import ToolContext


@dataclass(frozen=True, slots=True)
class PlainRead:
    """What the model reads of a call, and its ledger row by column; JSON columns are plain values."""

    text: str
    ledger: Mapping[str, Any]


def plain_read(checked: Checked, context: ToolContext, outcome: Outcome) -> PlainRead | None:
    """The same as `ToolExecutor.record` would write; None when a call needs more than one plain row.

    That is: it was not run, a person was asked about it, or its result is too large to be told whole.
    """
    if checked.kind != "read" or checked.approval is not None or checked.settled:
        return None
    if outcome.status not in (ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED):
        return None
    text = told(checked.call["name"], outcome.envelope)
    tokens, limits = estimated_tokens(text), tool_settings()
    if tokens > limits.result_tokens or tokens > limits.batch_tokens // BATCH_SMALL:
        return None
    return PlainRead(
        text=text,
        ledger={
            "workspace_id": context.workspace.pk,
            "user_id": context.user.pk,
            "correlation_id": context.correlation_id,
            "owner_kind": context.owner_kind,
            "owner_id": context.owner_id,
            "conversation_id": context.conversation_id,
            "plan_id": context.plan_id,
            "round": context.round,
            "position": context.position,
            "tool_name": checked.call["name"][:128],
            "effect": checked.effect,
            "mode": context.mode,
            "arguments": checked.arguments.stored,
            "arguments_digest": checked.digest,
            "idempotency_key": context.idempotency_key,
            "status": outcome.status,
            "result": outcome.envelope["result"],
            "error": outcome.envelope["error"] or "",
            "duration_ms": outcome.duration_ms,
            "cached": False,
            "scope_version": checked.scope_version,
            "told_tokens": tokens,
        },
    )
