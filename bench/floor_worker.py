"""The floors of `plans.py`: bare psycopg, no Django connection, no policies, no broker, one commit a step.

python floor_worker.py lean          the rows that ours writes, by the leanest statement: nothing is asked, all is known
python floor_worker.py statement     the hot path's own statement, which also asks for fence, rights and readiness
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

from config import collector

with collector.paused():
    django.setup()

import psycopg
from plan_step import do_step
from psycopg.types.numeric import Int4, Int8

from events.models import Event, Stream
from plan import hot
from plan.models import ExecutionPlan, PlanStep
from tools.models import ToolExecution

IDLE_S = 0.005
PLAN, STEP, STREAM, EVENT, LEDGER = (
    model._meta.db_table for model in (ExecutionPlan, PlanStep, Stream, Event, ToolExecution)
)
COLUMNS = list(hot.LEDGER)
CLAIM = f"""UPDATE {PLAN} SET status = 'running', fence = 1, attempts = 1,
    lease_until = clock_timestamp() + interval '30 seconds' WHERE id = (SELECT id FROM {PLAN}
    WHERE status NOT IN ('completed', 'failed', 'cancelled') AND status = 'pending' ORDER BY id LIMIT 1
    FOR UPDATE SKIP LOCKED) RETURNING id, stream_id, workspace_id, owner_id, correlation_id"""
START = f"""WITH st AS (UPDATE {STEP} SET status = 'running', started_at = now() WHERE id = $1),
    sq AS (UPDATE {STREAM} SET last_seq = $2 WHERE id = $3),
    ev AS (INSERT INTO {EVENT} (stream_id, seq, name, payload, correlation_id, created_at)
        VALUES ($3, $2, 'plan_step', $4, $5, now()))
    UPDATE {PLAN} SET lease_until = clock_timestamp() + interval '30 seconds' WHERE id = $6"""
END = f"""WITH done AS (UPDATE {STEP} SET status = 'completed', result_json = $1, error = '', ended_at = now()
        WHERE id = $2),
    nx AS (UPDATE {STEP} SET status = 'running', started_at = now() WHERE id = $3),
    sq AS (UPDATE {STREAM} SET last_seq = $5 WHERE id = $6),
    ev AS (INSERT INTO {EVENT} (stream_id, seq, name, payload, correlation_id, created_at)
        VALUES ($6, $4, 'plan_step', $7, $8, now()), ($6, $5, $9, $10, $8, now())),
    led AS (INSERT INTO {LEDGER} ({", ".join(f'"{name}"' for name in COLUMNS)}, created_at, ended_at)
        VALUES ({", ".join(f"${place}" for place in range(13, 13 + len(COLUMNS)))}, now(), now()))
    UPDATE {PLAN} SET attempts = 0, status = $11::varchar, lease_until = clock_timestamp() + interval '30 seconds',
        ended_at = CASE WHEN $11::varchar = 'completed' THEN now() END WHERE id = $12"""

Connection = psycopg.Connection[Any]


def ledger_row(workspace: int, owner: int, name: str, plan: int, step: int, number: int, result: str) -> list[Any]:
    """The call's row, by the columns in `hot.LEDGER`."""
    arguments = json.dumps({"plan": name, "number": number})
    values = [workspace, owner, name, "step", step, None, plan, 1, 1, "bench_step", "read", "workflow", f"{step}",
              arguments, f"{step}", "succeeded", result, "", 0, False, 0, 0]  # fmt: skip
    return [Int8(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in values]


def event(plan: int, step: int, number: int, status: str) -> str:
    """The payload of a step's event."""
    return json.dumps({"run": f"step:{step}", "plan_id": plan, "step": f"s{number}", "order": number + 1,
                       "action": "Do the bench's step.", "kind": "data", "status": status})  # fmt: skip


def run_lean(connection: Connection, plan: int, stream: Any, workspace: int, owner: int, name: str) -> None:
    """All of a plan's steps; ids and places are known beforehand."""
    cursor = psycopg.RawCursor(connection)
    key = Int8(plan)
    steps = [row[0] for row in cursor.execute(f'SELECT id FROM {STEP} WHERE plan_id = $1 ORDER BY "order"', [key])]
    cursor.execute(START, [Int8(steps[0]), Int8(1), stream, event(plan, steps[0], 0, "running"), name, key])
    for number, (step, following) in enumerate(zip(steps, [*steps[1:], 0], strict=True)):
        result = json.dumps(do_step(name, number))
        after = (
            ("plan_step", event(plan, following, number + 1, "running"), "running")
            if following
            else ("plan_completed", json.dumps({"plan_id": plan, "result": result}), "completed")
        )
        seq = 2 * number + 2
        cursor.execute(
            END,
            [result, Int8(step), Int8(following), Int8(seq), Int8(seq + 1), stream,
             event(plan, step, number, "completed"), name, *after, key,
             *ledger_row(workspace, owner, name, plan, step, number, result)],
        )  # fmt: skip


def run_statement(connection: Connection, plan: int, stream: Any, workspace: int, owner: int, name: str) -> None:
    """All of a plan's steps by the hot path's statement."""
    cursor = psycopg.RawCursor(connection)
    start, end, order = hot._statement(hot._START), hot._statement(hot._END), 4 + hot.STEP.index("order")
    keys = {"s": stream, "p": Int8(plan), "f": Int8(1), "r": Int8(0), "n": Int8(0), "d": 30.0, "c": name,
            "w": Int8(workspace), "u": Int8(owner)}  # fmt: skip
    row = cursor.execute(start.text, [keys[each] for each in start.names]).fetchone()
    while row is not None and row[4] is not None:
        number, step = row[order] - 1, row[4]
        result = json.dumps(do_step(name, number))
        ledger = dict(zip(COLUMNS, ledger_row(workspace, owner, name, plan, step, number, result), strict=True))
        values = {**keys, **ledger, "n": Int8(step), "j": result, "duration_ms": Int4(0)}
        row = cursor.execute(end.text, [values[each] for each in end.names]).fetchone()


RUNS: dict[str, Callable[..., None]] = {"lean": run_lean, "statement": run_statement}


def main(kind: str) -> None:
    run = RUNS[kind]
    connection: Connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=1)
    while True:
        claimed = connection.execute(CLAIM.encode()).fetchone()
        if claimed is None:
            time.sleep(IDLE_S)
        else:
            run(connection, *claimed)


if __name__ == "__main__":
    main(sys.argv[1])
