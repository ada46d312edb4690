"""Tools that reach outside: what they did is a line in a file, so that it outlives the process that did it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from factory.agents import create_agent
from llm.ports import BaseLLM
from tools.executor import ToolExecutor
from tools.registry import Registry, tool
from tools.types import ToolContext

WRITE = "capstan_workspaces.add_workspace"


def outside(world: Path) -> Registry:
    """`tell`, which may happen once alone, and `notify`, which may be repeated, leave their key; and `look`."""
    registry = Registry()

    def happen(context: ToolContext) -> None:
        with world.open("a") as lines:
            lines.write(f"{context.idempotency_key}\n")

    @tool(effect="external", permission=WRITE, registry=registry)
    def tell(text: str, context: ToolContext) -> str:
        """Tell the world."""
        happen(context)
        return text

    @tool(effect="external", permission=WRITE, idempotent=True, registry=registry)
    def notify(text: str, context: ToolContext) -> str:
        """Tell the world as often as you like."""
        happen(context)
        return text

    @tool(effect="read", chat=True, registry=registry)
    def look(at: str) -> str:
        """Look. Whoever looks `down` beside another look falls, once that one has come back."""
        if at != "down":
            with world.open("a") as lines:
                lines.write(f"{at}\n")
            return at
        for _ in range(500):
            if world.exists():
                break
            time.sleep(0.01)
        if os.environ.get("CAPSTAN_CRASH_AT") == "between":
            time.sleep(0.2)  # for the other's envelope
            os.kill(os.getpid(), signal.SIGKILL)
        return at

    return registry


def agent_with(registry: Registry, llm: BaseLLM, identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
    """The product's agent, on these tools alone."""
    agent = create_agent(identity, llm=llm, mode=mode, tier=tier)
    who = replace(agent.identity, allowed_tools=registry.names())
    return replace(agent, identity=who, executor=ToolExecutor(registry, who, mode=mode))
