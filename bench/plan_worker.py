"""Celery's entry for the bench: the product's own worker with one read tool that does nothing.

celery -A plan_worker worker -P threads -c 8 -Q plans
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from plan_step import do_step

from config.celery import app
from factory.agents import PlannerAgent, create_agent
from tools.executor import ToolExecutor
from tools.registry import Registry, tool
from tools.types import ToolContext
from worker import tasks

_registry = Registry()


@tool(effect="read", registry=_registry)
def bench_step(context: ToolContext, plan: str, number: int) -> dict[str, Any]:
    """Do the bench's step."""
    return do_step(plan, number)


def bench_agents(identity: str, *, mode: Any = "workflow", tier: Any = None) -> PlannerAgent:
    """The product's agent, offered the bench's tool alone."""
    agent = create_agent(identity, mode=mode, tier=tier)
    who = replace(agent.identity, allowed_tools=_registry.names())
    return replace(agent, identity=who, executor=ToolExecutor(_registry, who, mode=mode))


tasks.create_agent = bench_agents  # type: ignore[assignment, attr-defined]


def trace_memory() -> None:
    """At each SIGUSR2 say what has grown since the first one."""
    import gc
    import signal
    import tracemalloc
    from collections import Counter

    seen: list[tracemalloc.Snapshot] = []
    kinds: list[Counter[str]] = []

    def tell(_number: int, _frame: object) -> None:
        gc.collect()
        seen.append(tracemalloc.take_snapshot())
        kinds.append(Counter(type(each).__name__ for each in gc.get_objects()))
        print(f"-- {os.getpid()}: {len(gc.get_objects())} objects", kinds[-1].most_common(8), file=sys.__stderr__)
        if len(seen) > 1:
            print("grown since the first:", (kinds[-1] - kinds[0]).most_common(12), file=sys.__stderr__)
            for line in seen[-1].compare_to(seen[0], "traceback")[:8]:
                print(line, *line.traceback.format()[-8:], sep="\n", file=sys.__stderr__)

    tracemalloc.start(6)
    signal.signal(signal.SIGUSR2, tell)


if os.environ.get("BENCH_TRACE"):
    trace_memory()
__all__ = ["app", "bench_agents"]
