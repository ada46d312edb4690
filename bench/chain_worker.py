"""The peer: a chain of Celery tasks on Redis, late acknowledgement, two prefork children. It is not durable."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from celery import Celery
from plan_step import do_step

app = Celery("chain_worker", broker=os.environ["BENCH_CHAIN_BROKER"], set_as_current=False)
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_hijack_root_logger=False)


@app.task(name="bench.step")
def step(plan: str, number: int) -> Any:
    return do_step(plan, number)
