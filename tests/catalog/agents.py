"""Field agents whose model plays a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from catalog.prompts import D1_TONE
from factory.field import FieldAgent, create_field_agent
from llm.testing import ScriptedLLM, When
from llm.types import ModelRequest
from observability.types import CallOwner

Verdicts = Mapping[str, Mapping[str, Any]]


def answer(verdicts: Verdicts | None = None) -> Callable[[ModelRequest], str]:
    """A model's answer that keeps every candidate it is shown, but for those in `verdicts`."""

    def play(request: ModelRequest) -> str:
        shown = json.loads(request.messages[-1].content)
        given = verdicts or {}
        return json.dumps([{"key": c["key"], **given.get(c["key"], {"verdict": "keep"})} for c in shown])

    return play


def scripted(verdicts: Verdicts | None = None) -> ScriptedLLM:
    """A model that answers any number of batches with `answer(verdicts)`."""
    return ScriptedLLM([When(lambda request: True, answer(verdicts), times=None)])


def agent_of(llm: ScriptedLLM, owner: CallOwner | None = None) -> FieldAgent:
    """The field agent as the command wires it, on a scripted model."""
    return create_field_agent(llm=llm, owner=owner, instructions=D1_TONE)
