"""The hot path: a data step's end, the next one's start and, where it was the last, the plan's end in one statement.

A new plan and its steps are one statement too. Everything that a unit does under its locks happens here in the same
order: stream, plan, steps, ledger, events. The plan's row is asked for fence, status, cancel and `revision`, which
every change from outside raises: a statement that waited for such a change finds its row moved on, writes nothing, and
its caller takes the long way through a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from psycopg.types.numeric import Int4, Int8

from events.models import Event, Stream
from tools.models import ToolExecution
from tools.prepared import Prepared, inserted, instance_of, json_row, json_rows, stored
from tools.quick import MAY_READ, MayRead, QuickCall
from tools.runs import RunRef

if TYPE_CHECKING:
    from plan.models import ExecutionPlan, PlanStep


LEDGER = {  # the row of a data step's read: what a parameter says, and what is the same for all
    "workspace_id": "%(w)s",
    "user_id": "%(u)s",
    "correlation_id": "%(c)s",
    "owner_kind": "'step'",
    "owner_id": "%(n)s",
    "conversation_id": "%(conversation_id)s",
    "plan_id": "%(p)s",
    "round": "1",
    "position": "1",
    "tool_name": "%(tool_name)s",
    "effect": "'read'",
    "mode": "'workflow'",
    "idempotency_key": "%(idempotency_key)s",
    "arguments": "%(arguments)s::jsonb",
    "arguments_digest": "%(arguments_digest)s",
    "status": "'succeeded'",
    "result": "%(j)s::jsonb",
    "error": "''",
    "duration_ms": "%(duration_ms)s",
    "cached": "false",
    "scope_version": "%(scope_version)s",
    "told_tokens": "0",
}


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


def insert_plan(plan: ExecutionPlan, steps: Sequence[PlanStep]) -> None:
    """Insert a new plan and its steps, at least one; they have their keys then."""
    row = _inserting().row({"plan": json_row(plan), "steps": json_rows(steps)})
    assert row is not None
    stored(plan, row[0])
    for step, pk in zip(steps, row[1], strict=True):
        step.plan = plan
        stored(step, pk)


@cache
def _inserting() -> Prepared:
    from plan.models import ExecutionPlan, PlanStep

    columns, record = inserted(ExecutionPlan)
    step_columns, step_record = inserted(PlanStep, but=("plan_id",))
    return Prepared(
        f"""WITH p AS (INSERT INTO {ExecutionPlan._meta.db_table} ({columns})
            SELECT {columns} FROM jsonb_to_record(%(plan)s::jsonb) AS x({record}) RETURNING id),
        s AS (INSERT INTO {PlanStep._meta.db_table} (plan_id, {step_columns})
            SELECT p.id, {step_columns} FROM p, jsonb_to_recordset(%(steps)s::jsonb) AS x({step_record})
            RETURNING id, "order")
        SELECT p.id, (SELECT array_agg(s.id ORDER BY s."order") FROM s) FROM p"""  # noqa: S608
    )


def end_data_step(run: RunRef, *, step: PlanStep, revision: int, ledger: QuickCall) -> Moved | None:
    """Complete a data step whose read has answered; None: nothing was written, take the long way.

    Args:
        run: the claimed plan.
        revision: of the plan, as its owner knows it.
        ledger: the call that was its only one. Its result is the step's, and the plan's where no step left a synthesis.
    """
    return _moved(
        _statement(_END).row(
            {
                **_keys(run, revision, step.pk, ledger.user_id),
                "conversation_id": ledger.conversation_id,
                "tool_name": ledger.tool_name,
                "idempotency_key": ledger.idempotency_key,
                "arguments": ledger.arguments,
                "arguments_digest": ledger.arguments_digest,
                "j": ledger.result,
                "duration_ms": Int4(ledger.duration_ms),
                "scope_version": Int8(ledger.scope_version),
            }
        )
    )


def start_first(run: RunRef, *, revision: int, user_id: int) -> Moved | None:
    """Start the first ready step of a plan that nobody has begun; None: nothing was written, take the long way."""
    return _moved(_statement(_START).row(_keys(run, revision, 0, user_id)))


def _keys(run: RunRef, revision: int, step: int, user_id: int) -> dict[str, Any]:
    return {
        "s": run.stream_id,
        "p": Int8(run.pk),
        "f": Int8(run.fence),
        "r": Int8(revision),
        "n": Int8(step),
        "d": float(settings.CAPSTAN_LEASE_SECONDS),
        "c": run.correlation_id,
        "w": Int8(run.workspace_id),
        "u": Int8(user_id),
    }


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


_HELD = """o.id = %(p)s AND o.fence = %(f)s AND o.status = 'running' AND o.cancel_requested_at IS NULL
        AND o.revision = %(r)s"""
# Rows are named by their keys alone, one lookup each: a plan that the server keeps for all parameters was made when
# the tables were small, and must not be one that reads a whole index. So no step that is updated is asked for its
# status in words that would let `step_pending` answer.
_NEXT = """rd AS MATERIALIZED (SELECT s.id, s."order" FROM (
            SELECT id, "order", reads FROM {step_table} w WHERE w.plan_id = %(p)s AND w.status = 'pending'
            ORDER BY w."order" LIMIT 5) s
        WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(s.reads) AS read(key) WHERE (
            SELECT r.id <> %(n)s AND NOT (r.status IN ('completed', 'skipped')
                OR r.status = 'failed' AND NOT r.is_critical)
            FROM {step_table} r WHERE r.plan_id = %(p)s AND r.key = read.key))
        ORDER BY s."order" LIMIT 2),
    nx AS MATERIALIZED (SELECT id FROM rd ORDER BY "order" LIMIT 1)"""  # one that is ready farther on: the long way
_MOVED = """jsonb_build_object('run', 'step:' || t.id, 'plan_id', t.plan_id, 'step', t.key,
        'order', t."order", 'action', t.action, 'kind', t.kind, 'status', t.status)"""  # as services.step_payload
_EVENT = "INSERT INTO {event_table} (stream_id, seq, name, payload, correlation_id, created_at)"

# The stream's counter comes first, since everybody locks the stream before the plan. Where the plan's row then refuses,
# numbers of events stay unused.
_START = f"""WITH {_NEXT},
    str AS (UPDATE {{stream_table}} s SET last_seq = s.last_seq + 1 FROM nx WHERE s.id = %(s)s RETURNING s.last_seq),
    p AS (UPDATE {{plan_table}} o SET lease_until = clock_timestamp() + %(d)s * interval '1 second'
        FROM str WHERE {_HELD} RETURNING o.id, str.last_seq, clock_timestamp() AS at),
    st AS (UPDATE {{step_table}} t SET status = 'running', started_at = COALESCE(t.started_at, p.at)
        FROM p WHERE t.id = (SELECT id FROM nx) AND (t.status = 'pending') IS TRUE RETURNING t.*),
    ev AS ({_EVENT}
        SELECT %(s)s, p.last_seq, 'plan_step', {_MOVED}, %(c)s, p.at FROM p, st t)
    SELECT false, (SELECT count(*) FROM rd) > 1, {{may_read}}, {{columns}} FROM st t"""  # noqa: S608

_END = f"""WITH {_NEXT},
    rest AS MATERIALIZED (SELECT none, (none OR EXISTS (SELECT FROM nx))::int AS extra FROM (
        SELECT NOT EXISTS (SELECT FROM nx)
            AND NOT EXISTS (SELECT FROM {{step_table}} s WHERE s.plan_id = %(p)s AND s.status = 'pending')
            AND NOT EXISTS (SELECT FROM {{step_table}} s WHERE s.plan_id = %(p)s AND s.id <> %(n)s
                AND NOT (s.status IN ('completed', 'skipped') OR s.status = 'failed' AND NOT s.is_critical))
            AS none) x),
    str AS (UPDATE {{stream_table}} s SET last_seq = s.last_seq + 1 + rest.extra FROM rest WHERE s.id = %(s)s
        RETURNING s.last_seq, rest.none, rest.extra),
    p AS (UPDATE {{plan_table}} o SET attempts = 0,
            status = CASE WHEN str.none THEN 'completed' ELSE 'running' END,
            lease_until = CASE WHEN NOT str.none THEN clock_timestamp() + %(d)s * interval '1 second' END,
            lease_owner = CASE WHEN str.none THEN '' ELSE o.lease_owner END,
            ended_at = CASE WHEN str.none THEN clock_timestamp() END
        FROM str WHERE {_HELD} RETURNING o.id, str.none AS ended, str.last_seq, str.extra, clock_timestamp() AS at),
    st AS (UPDATE {{step_table}} t SET
            status = CASE WHEN t.id = %(n)s THEN 'completed' ELSE 'running' END,
            result_json = CASE WHEN t.id = %(n)s THEN %(j)s::jsonb ELSE t.result_json END,
            error = CASE WHEN t.id = %(n)s THEN '' ELSE t.error END,
            started_at = COALESCE(t.started_at, p.at),
            ended_at = CASE WHEN t.id = %(n)s THEN p.at ELSE t.ended_at END
        FROM p WHERE t.id = ANY (ARRAY[%(n)s, (SELECT id FROM nx)])
            AND t.status = CASE WHEN t.id = %(n)s THEN 'running' ELSE 'pending' END RETURNING t.*),
    led AS (INSERT INTO {{ledger_table}} ({{ledger_columns}}, created_at, ended_at)
        SELECT {{ledger_values}}, p.at, p.at FROM p),
    ev AS ({_EVENT}
        SELECT %(s)s, p.last_seq - CASE WHEN t.id = %(n)s THEN p.extra ELSE 0 END, 'plan_step', {_MOVED}, %(c)s, p.at
            FROM p, st t
        UNION ALL SELECT %(s)s, p.last_seq, 'plan_completed', jsonb_build_object('plan_id', p.id, 'result',
            COALESCE((SELECT s.llm_synthesis FROM {{step_table}} s WHERE s.plan_id = %(p)s
                AND s.status = 'completed' AND s.llm_synthesis <> '' ORDER BY s."order" DESC LIMIT 1),
                %(j)s::text)), %(c)s, p.at FROM p WHERE p.ended)
    SELECT p.ended, (SELECT count(*) FROM rd) > 1, {{may_read}}, {{columns}}
    FROM p LEFT JOIN st t ON t.id <> %(n)s"""  # noqa: S608


@cache
def _statement(template: str) -> Prepared:
    from plan.models import ExecutionPlan, PlanStep

    return Prepared(
        template.format(
            plan_table=ExecutionPlan._meta.db_table,
            step_table=PlanStep._meta.db_table,
            stream_table=Stream._meta.db_table,
            event_table=Event._meta.db_table,
            ledger_table=ToolExecution._meta.db_table,
            may_read=MAY_READ,
            columns=", ".join(f't."{name}"' for name in STEP),
            ledger_columns=", ".join(LEDGER),
            ledger_values=", ".join(LEDGER.values()),
        )
    )
