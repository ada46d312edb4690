"""Tools that reach outside: what they did is a line in a file, so that it outlives the process that did it."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from factory.agents import create_agent
from llm.ports import BaseLLM
from tests.support.waiting import wait_until
from tools.executor import ToolExecutor
from tools.registry import Registry, tool
from tools.threads import tool_threads
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
        """Look. Where it is asked for, whoever looks `down` beside another look falls, once that one has come back."""
        with world.open("a") as lines:
            lines.write(f"{at}\n")
        if at == "down" and os.environ.get("CAPSTAN_CRASH_AT") == "between":
            wait_until(lambda: tool_threads._idle, 30, what="the thread of the look beside it is free again")
            os.kill(os.getpid(), signal.SIGKILL)
        return at

    return registry


def agent_with(registry: Registry, llm: BaseLLM, identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
    """The product's agent, on these tools alone."""
    agent = create_agent(identity, llm=llm, mode=mode, tier=tier)
    who = replace(agent.identity, allowed_tools=registry.names())
    return replace(agent, identity=who, executor=ToolExecutor(registry, who, mode=mode))
