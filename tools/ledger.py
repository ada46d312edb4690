"""Writing the ledger, and what the model reads of a call's result (CAP-031, CAP-101)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Sum

from tools.models import ExecutionStatus, StoredResult, ToolExecution
from tools.results import SMALLEST_SHARE, cut, estimated_tokens, page_of, told
from tools.settings import tool_settings
from tools.types import Envelope, ToolContext

_TABLE = ToolExecution._meta.db_table
_INSERT = f"""
    INSERT INTO {_TABLE} (workspace_id, user_id, correlation_id, owner_kind, owner_id, conversation_id, plan_id,
        round, position, tool_name, effect, mode, idempotency_key, arguments, arguments_digest, status, result, error,
        duration_ms, cached, scope_version, told_tokens, approval_id, created_at, ended_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s::jsonb, %s, %s, %s, %s, %s, %s,
        clock_timestamp(), CASE WHEN %s THEN NULL ELSE clock_timestamp() END)
"""  # noqa: S608
_COMPLETE = f"""
    UPDATE {_TABLE} SET status = %s, result = %s::jsonb, error = %s, duration_ms = %s, told_tokens = %s,
        approval_id = %s, ended_at = clock_timestamp()
    WHERE owner_kind = %s AND owner_id = %s AND round = %s AND position = %s AND status IN ('started', 'unknown')
    RETURNING id
"""  # noqa: S608


_STORE = f"INSERT INTO {StoredResult._meta.db_table} (execution_id, text, is_json) VALUES (%s, %s, %s)"  # noqa: S608
BATCH_SMALL = 20  # a result under this part of a round's cap is given whole without adding up the round


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the ledger, before it is written."""

    tool_name: str
    effect: str
    arguments: dict[str, Any]
    digest: str
    envelope: Envelope
    status: str
    duration_ms: int = 0
    cached: bool = False
    scope_version: int | None = None
    approval_id: int | None = None


def start(tool_name: str, effect: str, arguments: dict[str, Any], digest: str, context: ToolContext) -> None:
    """Put a call on the ledger before it runs; one that was left open by a crash is opened again."""
    entry = Entry(
        tool_name=tool_name,
        effect=effect,
        arguments=arguments,
        digest=digest,
        envelope=Envelope(success=False, result=None, error=None),
        status=ExecutionStatus.STARTED,
    )
    reopen = (
        " ON CONFLICT (owner_kind, owner_id, round, position) DO UPDATE SET status = 'started', ended_at = NULL"
        f" WHERE {_TABLE}.status IN ('started', 'unknown') RETURNING id"
    )
    with connection.cursor() as cursor:
        cursor.execute(_INSERT + reopen, _values(entry, context))
        if cursor.fetchone() is None:
            raise ValueError(f"call {context.round}.{context.position} of {context.owner_kind} has ended already")


def record(entry: Entry, context: ToolContext, *, started: bool) -> str:
    """Write a call's row, or complete the one that `start` wrote; the text the model reads."""
    text = told(entry.tool_name, entry.envelope)
    tokens = estimated_tokens(text)
    share = _share(entry, context, tokens)
    big = page_of(entry.envelope["result"]) if share < tokens and entry.envelope["success"] else None
    with connection.cursor() as cursor:
        row: tuple[int] | None = None
        if started:
            cursor.execute(
                _COMPLETE,
                [
                    entry.status,
                    None if big else _json(entry.envelope["result"]),
                    entry.envelope["error"] or "",
                    entry.duration_ms,
                    share,
                    entry.approval_id,
                    context.owner_kind,
                    context.owner_id,
                    context.round,
                    context.position,
                ],
            )
            row = cursor.fetchone()
        if row is None:
            cursor.execute(_INSERT + " RETURNING id", _values(entry, context, share=share, big=big is not None))
            row = cursor.fetchone()
        assert row is not None
        if big is None:
            return text
        cursor.execute(_STORE, [row[0], big.text, big.is_json])
    return cut(entry.tool_name, big, handle=str(row[0]), tokens=share)


def _share(entry: Entry, context: ToolContext, tokens: int) -> int:
    """How many tokens of the result the model is given: the cap of one result, within that of its round."""
    limits = tool_settings()
    share = min(tokens, limits.result_tokens)
    if share <= limits.batch_tokens // BATCH_SMALL:
        return share
    used = ToolExecution.objects.of_round(context).aggregate(used=Sum("told_tokens"))["used"] or 0
    return max(min(share, limits.batch_tokens - used), min(tokens, SMALLEST_SHARE))


def _values(entry: Entry, context: ToolContext, *, share: int = 0, big: bool = False) -> list[Any]:
    return [
        context.workspace.pk,
        context.user.pk,
        context.correlation_id,
        context.owner_kind,
        context.owner_id,
        context.conversation_id,
        context.plan_id,
        context.round,
        context.position,
        entry.tool_name[:128],
        entry.effect,
        context.mode,
        context.idempotency_key,
        _json(entry.arguments),
        entry.digest,
        entry.status,
        None if big else _json(entry.envelope["result"]),
        entry.envelope["error"] or "",
        entry.duration_ms,
        entry.cached,
        entry.scope_version,
        share,
        entry.approval_id,
        entry.status == ExecutionStatus.STARTED,
    ]


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
