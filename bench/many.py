"""Thousands of plans on two workers: does each end, does none run twice, does a worker's memory stay flat?

    python bench/many.py [waves] [plans a wave] [steps]      5 2000 10

Each wave is held and queued while the workers run. Every five seconds, and at the end of each wave, a JSON line tells
how far it is and how much memory each worker holds. At the end the rows are counted: plans and steps completed, calls
in the ledger, executions in the step log. A worker is judged by what it grew after the first wave, when all is warm.

BENCH_TRACE=1 traces the workers' allocations instead (`tracemalloc`; slow) and prints what grew most after the first
wave.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bed import Processes, StepLog, databases, django_on, empty_redis, say, scratch, stop_on_signals, table
from plan_peers import Ours

EVERY_S = 5.0
WAVE_S = 300.0


def run_wave(
    peer: Ours, workers: Processes, log: StepLog, *, wave: int, plans: int, steps: int, began: float
) -> list[float]:
    """Queue a wave and wait until all its plans have run; each worker's memory at the end, MB."""
    names = [f"wave{wave}-{number}" for number in range(plans)]
    told, until = time.monotonic(), time.monotonic() + WAVE_S

    def tell() -> None:
        say(wave=wave, at_s=round(time.monotonic() - began, 1), steps=len(log.read()), workers_mb=workers.rss_mb())

    for name in names:
        peer.enqueue(name, steps)
        if time.monotonic() - told >= EVERY_S:
            told = time.monotonic()
            tell()
    while not log.wait_for(names, steps, limit_s=min(EVERY_S, until - time.monotonic()), by=workers, every=0.2):
        if time.monotonic() >= until or not workers.alive():
            raise SystemExit(f"wave {wave} did not end\n{workers.last_lines()}")
        tell()
    time.sleep(1)
    tell()
    return workers.rss_mb()


def counted(log: StepLog, prefix: str = "wave") -> dict[str, Any]:
    """What the rows say, and what the steps noted."""
    from django.db.models import Count

    from plan.models import ExecutionPlan, PlanStep
    from tools.models import ToolExecution

    plans = ExecutionPlan.objects.filter(goal__startswith=prefix)
    steps = PlanStep.objects.filter(plan__in=plans)
    ran = Counter((plan, number) for plan, number, _at in log.read() if plan.startswith(prefix))
    calls = ToolExecution.objects.filter(owner_kind="step", owner_id__in=steps.values("pk"))
    return {
        "plans": {row["status"]: row["n"] for row in plans.values("status").annotate(n=Count("pk"))},
        "steps": {row["status"]: row["n"] for row in steps.values("status").annotate(n=Count("pk"))},
        "ledger_rows": calls.count(),
        "steps_with_two_ledger_rows": calls.values("owner_id").annotate(n=Count("pk")).filter(n__gt=1).count(),
        "executions": sum(ran.values()),
        "executed_twice": sum(1 for count in ran.values() if count > 1),
    }


def main(arguments: Sequence[str]) -> None:
    stop_on_signals()
    waves, plans, steps = (int(each) for each in (*arguments, *("5", "2000", "10")[len(arguments) :]))
    with scratch() as folder, databases("") as [url], django_on(url):
        os.environ["BENCH_STEPLOG"] = str(folder / "steps.log")
        log, peer = StepLog(folder / "steps.log"), Ours(url)
        empty_redis()
        began, memory = time.monotonic(), list[list[float]]()
        with Processes(peer.workers(), env=peer.env(), log=folder / "workers.log") as workers:
            for wave in range(1, waves + 1):
                memory.append(run_wave(peer, workers, log, wave=wave, plans=plans, steps=steps, began=began))
                if os.environ.get("BENCH_TRACE"):
                    workers.signal(signal.SIGUSR2)
                    time.sleep(15)
            facts = counted(log)
            said = workers.last_lines() if not os.environ.get("BENCH_TRACE") else workers.log.read_text()
    whole = waves * plans
    right = (
        facts["plans"] == {"completed": whole}
        and facts["steps"] == {"completed": whole * steps}
        and facts["ledger_rows"] == facts["executions"] == whole * steps
        and not facts["executed_twice"]
    )
    if said.strip():
        print(said)
    table(["after wave", *(f"worker {n}, MB" for n in (1, 2))], [[n, *row] for n, row in enumerate(memory, start=1)])
    say(**facts, all_once=right, grew_mb=[round(b - a, 1) for a, b in zip(memory[0], memory[-1], strict=True)])
    if not right:
        raise SystemExit("not every plan and step ran exactly once")


if __name__ == "__main__":
    main(sys.argv[1:])
