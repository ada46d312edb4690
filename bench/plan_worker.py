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


tasks.create_agent = bench_agents  # type: ignore[assignment]
__all__ = ["app", "bench_agents"]
