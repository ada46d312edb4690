# mypy: allow-untyped-decorators
"""The peer DBOS: a workflow of N steps on a queue. Runs under the peer's own interpreter, which knows nothing of ours.

python dbos_worker.py worker POLL_S CONCURRENCY|none      one of the two worker processes
python dbos_worker.py enqueue                             reads `plan steps` lines, answers when each was enqueued
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from dbos import DBOS, DBOSClient, run_dbos_database_migrations  # type: ignore[import-not-found]
from plan_step import do_step

URL = os.environ["BENCH_PEER_DATABASE"]
APP, QUEUE = "bench", "plans"


@DBOS.step()
def step(plan: str, number: int) -> dict[str, Any]:
    return do_step(plan, number)


@DBOS.workflow()
def run_plan(plan: str, steps: int) -> None:
    for number in range(steps):
        step(plan, number)


def work(poll_s: float, concurrency: int | None) -> None:
    DBOS(config={"name": APP, "system_database_url": URL, "log_level": "ERROR", "run_migrations": False})
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=poll_s, worker_concurrency=concurrency)
    while True:
        time.sleep(3600)


def enqueue() -> None:
    client = DBOSClient(system_database_url=URL, application_name=APP)
    print("ready", flush=True)
    for line in sys.stdin:
        plan, steps = line.split()
        asked = time.monotonic()
        client.enqueue({"workflow_name": "run_plan", "queue_name": QUEUE, "workflow_id": plan}, plan, int(steps))
        print(asked, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["migrate"]:
            run_dbos_database_migrations(URL)
        case ["worker", poll, wanted]:
            work(float(poll), None if wanted == "none" else int(wanted))
        case ["enqueue"]:
            enqueue()
