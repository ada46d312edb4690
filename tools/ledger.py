"""Writing the ledger, and what the model reads of a call's result (CAP-031, CAP-101)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import connection

from events.models import EventRecord
from events.types import EventName
from tools.models import ExecutionStatus, ToolExecution
from tools.types import Envelope, ToolContext, UnitOfWork

__all__ = ["Body", "Entry", "EventName", "EventRecord", "record", "start"]

Body = Callable[[UnitOfWork], Any]

_TABLE = ToolExecution._meta.db_table
_INSERT = f"""
    INSERT INTO {_TABLE} (workspace_id, user_id, correlation_id, owner_kind, owner_id, conversation_id, plan_id,
        round, position, tool_name, effect, mode, idempotency_key, arguments, arguments_digest, status, result, error,
        duration_ms, cached, scope_version, created_at, ended_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s::jsonb, %s, %s, %s, %s,
        clock_timestamp(), CASE WHEN %s THEN NULL ELSE clock_timestamp() END)
"""  # noqa: S608
_COMPLETE = f"""
    UPDATE {_TABLE} SET status = %s, result = %s::jsonb, error = %s, duration_ms = %s, ended_at = clock_timestamp()
    WHERE owner_kind = %s AND owner_id = %s AND round = %s AND position = %s AND status IN ('started', 'unknown')
    RETURNING id
"""  # noqa: S608


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
    with connection.cursor() as cursor:
        completed = False
        if started:
            cursor.execute(
                _COMPLETE,
                [
                    entry.status,
                    _json(entry.envelope["result"]),
                    entry.envelope["error"] or "",
                    entry.duration_ms,
                    context.owner_kind,
                    context.owner_id,
                    context.round,
                    context.position,
                ],
            )
            completed = cursor.fetchone() is not None
        if not completed:
            cursor.execute(_INSERT + " RETURNING id", _values(entry, context))
    return told(entry.tool_name, entry.envelope)


def told(tool_name: str, envelope: Envelope) -> str:
    """What the model reads: JSON between marks that nothing inside it can close, so that output stays data."""
    content = envelope["result"] if envelope["success"] else {"error": envelope["error"]}
    mark = "" if envelope["success"] else ' error="true"'
    safe_name = "".join(character for character in tool_name if character.isalnum() or character in "_-")[:64]
    return f'<tool_result tool="{safe_name}"{mark}>\n{as_text(content)}\n</tool_result>'


def as_text(value: Any) -> str:
    """Compact JSON in which no closing tag can stand."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")


def _values(entry: Entry, context: ToolContext) -> list[Any]:
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
        _json(entry.envelope["result"]),
        entry.envelope["error"] or "",
        entry.duration_ms,
        entry.cached,
        entry.scope_version,
        entry.status == ExecutionStatus.STARTED,
    ]


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
