# mypy: allow-untyped-decorators
"""The peer procrastinate: a job a step, each defers the next. Runs under the peer's own interpreter.

python procrastinate_worker.py worker CONCURRENCY     one of the two worker processes
python procrastinate_worker.py enqueue                reads `plan steps` lines, answers when each was enqueued
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from plan_step import do_step
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector  # type: ignore[import-not-found]

URL = os.environ["BENCH_PEER_DATABASE"]
app = App(connector=PsycopgConnector(conninfo=URL))


@app.task(name="bench.step")
async def step(plan: str, number: int, steps: int) -> None:
    do_step(plan, number)
    if number + 1 < steps:
        await step.defer_async(plan=plan, number=number + 1, steps=steps)


async def work(concurrency: int) -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency)


def enqueue() -> None:
    with App(connector=SyncPsycopgConnector(conninfo=URL)).open() as client:
        first = client.configure_task("bench.step", allow_unknown=True)
        print("ready", flush=True)
        for line in sys.stdin:
            plan, steps = line.split()
            asked = time.monotonic()
            first.defer(plan=plan, number=0, steps=int(steps))
            print(asked, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["migrate"]:
            with App(connector=SyncPsycopgConnector(conninfo=URL)).open() as opened:
                opened.schema_manager.apply_schema()
        case ["worker", wanted]:
            asyncio.run(work(int(wanted)))
        case ["enqueue"]:
            enqueue()
