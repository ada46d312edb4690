"""The floor of `plans.py`: pop plans and run the hot path's statement for each step, through bare psycopg.

No Django connection, no policies, no broker: what the rows themselves cost. It writes the rows that ours writes, by the
same statement, one commit a step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

import psycopg
from plan_step import do_step
from psycopg.types.numeric import Int8

from plan import hot
from plan.models import ExecutionPlan

IDLE_S = 0.005


def main() -> None:
    table = ExecutionPlan._meta.db_table
    connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=1)
    claim = f"""UPDATE {table} SET status = 'running', fence = 1, attempts = 1,
        lease_until = clock_timestamp() + interval '30 seconds' WHERE id = (SELECT id FROM {table}
        WHERE status NOT IN ('completed', 'failed', 'cancelled') AND status = 'pending' ORDER BY id LIMIT 1
        FOR UPDATE SKIP LOCKED) RETURNING id, stream_id, workspace_id, owner_id, correlation_id""".encode()
    start, end = hot._statement(hot._START).encode(), hot._statement(hot._END).encode()
    order = hot.STEP.index("order")
    while True:
        plan = connection.execute(claim).fetchone()
        if plan is None:
            time.sleep(IDLE_S)
            continue
        pk, stream, workspace, owner, name = plan
        keys = {"s": stream, "p": Int8(pk), "f": Int8(1), "r": Int8(0), "n": Int8(0), "d": 30.0, "c": name,
                "l0": Int8(workspace), "l1": Int8(owner)}  # fmt: skip
        row = connection.execute(start, keys).fetchone()
        while row is not None and row[4] is not None:
            number, step = row[4 + order] - 1, row[4]
            result = json.dumps(do_step(name, number))
            ledger = [workspace, owner, name, "step", step, None, pk, 1, 1, "bench_step", "read", "workflow",
                      f"{step}", json.dumps({"plan": name, "number": number}), f"{step}", "succeeded", result, "",
                      0, False, 0, 0]  # fmt: skip
            values = {f"l{place}": hot._typed(value) for place, value in enumerate(ledger)}
            payload = json.dumps({"run": f"step:{step}", "plan_id": pk, "step": f"s{number}", "order": number + 1,
                                  "action": "Do the bench's step.", "kind": "data", "status": "completed"})  # fmt: skip
            row = connection.execute(
                end, {**keys, **values, "n": Int8(step), "j": result, "e": payload, "rt": ""}
            ).fetchone()


if __name__ == "__main__":
    main()
