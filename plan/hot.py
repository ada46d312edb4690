"""The hot path: a data step's end, the next one's start and, where it was the last, the plan's end in one statement.

Everything that a unit does under its locks happens here in the same order: stream, plan, steps, ledger, events. The
plan's row is asked for fence, status, cancel and `revision`, which every change from outside raises: a statement that
waited for such a change finds its row moved on, writes nothing, and its caller takes the long way through a unit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connection
from psycopg.types.numeric import Int8

from events.models import Event, Stream
from tools.models import ToolExecution
from tools.prepared import Prepared, instance_of
from tools.quick import MAY_READ, MayRead
from tools.runs import RunRef

if TYPE_CHECKING:
    from plan.models import PlanStep


LEDGER = (
    "workspace_id",
    "user_id",
    "correlation_id",
    "owner_kind",
    "owner_id",
    "conversation_id",
    "plan_id",
    "round",
    "position",
    "tool_name",
    "effect",
    "mode",
    "idempotency_key",
    "arguments",
    "arguments_digest",
    "status",
    "result",
    "error",
    "duration_ms",
    "cached",
    "scope_version",
    "told_tokens",
)


STEP = (  # what running a step asks of its row; the rest is read when it is wanted
    "id",
    "plan_id",
    "key",
    "order",
    "kind",
    "action",
    "recipe",
    "recipe_version",
    "tool_name",
    "args_json",
    "reads",
    "is_critical",
    "tier",
    "status",
    "origin_id",
)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a statement did.

    Args:
        plan_ended: it was the last step.
        next_step: runs now; None: none is ready.
        more: other steps are ready beside it.
        may_read: what the statement saw of the owner's rights, for the next step's read.
    """

    plan_ended: bool
    next_step: PlanStep | None
    more: bool
    may_read: MayRead


def end_data_step(
    run: RunRef,
    *,
    step: PlanStep,
    revision: int,
    result: str,
    payload: Mapping[str, Any],
    ledger: Mapping[str, Any],
    result_text: str,
) -> Moved | None:
    """Complete a data step whose read has answered; None: nothing was written, take the long way.

    Args:
        run: the claimed plan.
        revision: of the plan, as its owner knows it.
        result: JSON, small.
        payload: of the step's event.
        ledger: the call's row, by the names in `LEDGER`.
        result_text: what a completed plan says when no step left a synthesis.
    """
    params = {
        **_keys(run, revision, step.pk),
        "j": result,
        "e": json.dumps(payload, ensure_ascii=False),
        "rt": result_text,
        **{f"l{place}": _typed(ledger[name]) for place, name in enumerate(LEDGER)},
    }
    return _moved(_statement(_END).row(params))


def start_first(run: RunRef, *, revision: int, user_id: int) -> Moved | None:
    """Start the first ready step of a plan that nobody has begun; None: nothing was written, take the long way."""
    return _moved(_statement(_START).row({**_keys(run, revision, 0), "l1": Int8(user_id)}))


def _keys(run: RunRef, revision: int, step: int) -> dict[str, Any]:
    return {
        "s": run.stream_id,
        "p": Int8(run.pk),
        "f": Int8(run.fence),
        "r": Int8(revision),
        "n": Int8(step),
        "d": float(settings.CAPSTAN_LEASE_SECONDS),
        "c": run.correlation_id,
        "l0": Int8(run.workspace_id),
    }


def _typed(value: Any) -> Any:
    return Int8(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _moved(row: tuple[Any, ...] | None) -> Moved | None:
    if row is None:
        return None
    return Moved(
        plan_ended=row[0],
        more=row[1],
        may_read=MayRead(member=row[2], scope_version=row[3]),
        next_step=_step(row[4:]),
    )


def _step(row: tuple[Any, ...]) -> PlanStep | None:
    from plan.models import PlanStep

    return None if row[0] is None else instance_of(PlanStep, row, names=STEP)


_LOCK = "lk AS (SELECT id FROM {stream_table} WHERE id = %(s)s FOR NO KEY UPDATE)"
_HELD = """o.id = %(p)s AND o.fence = %(f)s AND o.status = 'running' AND o.cancel_requested_at IS NULL
        AND o.revision = %(r)s"""
# Rows are named by their keys alone, one lookup each: a plan that the server keeps for all parameters was made when
# the tables were small, and must not be one that reads a whole index.
_NEXT = """rd AS MATERIALIZED (SELECT s.id, s."order" FROM (
            SELECT id, "order", reads FROM {step_table} w WHERE w.plan_id = %(p)s AND w.status = 'pending'
            ORDER BY w."order" LIMIT 5) s
        WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(s.reads) AS read(key) WHERE (
            SELECT r.id <> %(n)s AND NOT (r.status IN ('completed', 'skipped')
                OR r.status = 'failed' AND NOT r.is_critical)
            FROM {step_table} r WHERE r.plan_id = %(p)s AND r.key = read.key))
        ORDER BY s."order" LIMIT 2),
    nx AS MATERIALIZED (SELECT id FROM rd ORDER BY "order" LIMIT 1)"""  # one that is ready farther on: the long way
_STARTED = """jsonb_build_object('run', 'step:' || t.id, 'plan_id', t.plan_id, 'step', t.key,
        'order', t."order", 'action', t.action, 'kind', t.kind, 'status', 'running')"""
_EVENT = "INSERT INTO {event_table} (stream_id, seq, name, payload, correlation_id, created_at)"

_START = f"""WITH {_LOCK},
    {_NEXT},
    p AS (UPDATE {{plan_table}} o SET lease_until = clock_timestamp() + %(d)s * interval '1 second'
        FROM lk, nx WHERE {_HELD} RETURNING o.id),
    nxt AS (UPDATE {{step_table}} t SET status = 'running', started_at = COALESCE(t.started_at, now())
        FROM p WHERE t.id = (SELECT id FROM nx) AND (t.status = 'pending') IS TRUE RETURNING t.*),
    str AS (UPDATE {{stream_table}} s SET last_seq = s.last_seq + 1 FROM nxt WHERE s.id = %(s)s
        RETURNING s.last_seq),
    ev AS ({_EVENT}
        SELECT %(s)s, str.last_seq, 'plan_step', {_STARTED}, %(c)s, now() FROM str, nxt t)
    SELECT false, (SELECT count(*) FROM rd) > 1, {{may_read}}, {{columns}} FROM nxt t"""  # noqa: S608

_END = f"""WITH {_LOCK},
    {_NEXT},
    rest AS MATERIALIZED (SELECT NOT EXISTS (SELECT FROM nx)
        AND NOT EXISTS (SELECT FROM {{step_table}} s WHERE s.plan_id = %(p)s AND s.status = 'pending')
        AND NOT EXISTS (SELECT FROM {{step_table}} s WHERE s.plan_id = %(p)s AND s.id <> %(n)s
            AND NOT (s.status IN ('completed', 'skipped') OR s.status = 'failed' AND NOT s.is_critical)) AS none),
    p AS (UPDATE {{plan_table}} o SET attempts = 0,
            status = CASE WHEN rest.none THEN 'completed' ELSE 'running' END,
            lease_until = CASE WHEN NOT rest.none THEN clock_timestamp() + %(d)s * interval '1 second' END,
            lease_owner = CASE WHEN rest.none THEN '' ELSE o.lease_owner END,
            ended_at = CASE WHEN rest.none THEN now() END
        FROM lk, rest WHERE {_HELD}
        RETURNING o.id, rest.none AS ended, (rest.none OR EXISTS (SELECT FROM nx))::int AS extra),
    st AS (UPDATE {{step_table}} t SET
            status = CASE WHEN t.id = %(n)s THEN 'completed' ELSE 'running' END,
            result_json = CASE WHEN t.id = %(n)s THEN %(j)s::jsonb ELSE t.result_json END,
            error = CASE WHEN t.id = %(n)s THEN '' ELSE t.error END,
            started_at = COALESCE(t.started_at, now()),
            ended_at = CASE WHEN t.id = %(n)s THEN now() ELSE t.ended_at END
        FROM p WHERE t.id = ANY (ARRAY[%(n)s, (SELECT id FROM nx)])
            AND t.status = CASE WHEN t.id = %(n)s THEN 'running' ELSE 'pending' END RETURNING t.*),
    led AS (INSERT INTO {{ledger_table}} ({{ledger_columns}}, created_at, ended_at)
        SELECT {{ledger_values}}, now(), now() FROM p),
    str AS (UPDATE {{stream_table}} s SET last_seq = s.last_seq + 1 + p.extra
        FROM p WHERE s.id = %(s)s RETURNING s.last_seq, p.extra),
    ev AS ({_EVENT}
        SELECT %(s)s, str.last_seq - CASE WHEN t.id = %(n)s THEN str.extra ELSE 0 END, 'plan_step',
            CASE WHEN t.id = %(n)s THEN %(e)s::jsonb ELSE {_STARTED} END, %(c)s, now() FROM str, st t
        UNION ALL SELECT %(s)s, str.last_seq, 'plan_completed', jsonb_build_object('plan_id', p.id, 'result',
            COALESCE((SELECT s.llm_synthesis FROM {{step_table}} s WHERE s.plan_id = %(p)s
                AND s.status = 'completed' AND s.llm_synthesis <> '' ORDER BY s."order" DESC LIMIT 1),
                %(rt)s::text)), %(c)s, now() FROM str, p WHERE p.ended)
    SELECT p.ended, (SELECT count(*) FROM rd) > 1, {{may_read}}, {{columns}}
    FROM p LEFT JOIN st t ON t.id <> %(n)s"""  # noqa: S608


@cache
def _statement(template: str) -> Prepared:
    from plan.models import ExecutionPlan, PlanStep

    ledger = {field.attname: field for field in ToolExecution._meta.concrete_fields}
    return Prepared(
        template.format(
            plan_table=ExecutionPlan._meta.db_table,
            step_table=PlanStep._meta.db_table,
            stream_table=Stream._meta.db_table,
            event_table=Event._meta.db_table,
            ledger_table=ToolExecution._meta.db_table,
            may_read=MAY_READ,
            columns=", ".join(f't."{name}"' for name in STEP),
            ledger_columns=", ".join(f'"{ledger[name].column}"' for name in LEDGER),
            ledger_values=", ".join(f"%(l{place})s::{_cast(ledger[name])}" for place, name in enumerate(LEDGER)),
        )
    )


def _cast(field: Any) -> str:
    kind = str(field.db_type(connection))
    return "text" if kind.startswith("varchar") else kind
