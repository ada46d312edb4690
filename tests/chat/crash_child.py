"""Runs one turn in a process of its own, to be killed at the crash point that the environment names.

`python -m tests.chat.crash_child TURN SCRIPT [WORLD]`, the script a JSON file as `llm.testing.load` reads it; with a
file for what happens outside, the agent has the tools of `tests.chat.outside`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import django

django.setup()

from django.utils import timezone  # noqa: E402  after the apps are loaded

from chat.runner import run_turn  # noqa: E402
from factory.agents import create_agent  # noqa: E402
from llm.testing import ScriptedLLM  # noqa: E402
from tests.chat.outside import agent_with, outside  # noqa: E402

if __name__ == "__main__":
    llm = ScriptedLLM.from_file(Path(sys.argv[2]))
    tools = outside(Path(sys.argv[3])) if len(sys.argv) > 3 else None

    def agents(identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
        if tools is not None:
            return agent_with(tools, llm, identity, mode=mode, tier=tier)
        return create_agent(identity, llm=llm, mode=mode, tier=tier)

    run_turn(int(sys.argv[1]), agents=agents, clock=timezone.now)
