"""pytest plugin: `pytest_plugins = ["llm.testing.plugin"]` in the root conftest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from llm.testing.loopback import OpenAILoopback
from llm.testing.replies import Answer, When
from llm.testing.scripted import ScriptedLLM

MakeScripted = Callable[..., ScriptedLLM]
MakeLoopback = Callable[..., OpenAILoopback]


@pytest.fixture
def scripted_llm() -> Iterator[MakeScripted]:
    """Makes `ScriptedLLM`s from answers, and fails a passed test that left some unplayed.

    `scripted_llm("a", call("b"), leftovers=True)` allows leftovers.
    """
    made: list[ScriptedLLM] = []

    def make(*answers: Answer | When, leftovers: bool = False, model_id: str = "scripted") -> ScriptedLLM:
        llm = ScriptedLLM(answers, model_id=model_id)
        if not leftovers:
            made.append(llm)
        return llm

    yield make
    unplayed = sum(llm.remaining for llm in made)
    assert unplayed == 0, f"{unplayed} scripted answers were never asked for"


@pytest.fixture
def openai_loopback() -> Iterator[MakeLoopback]:
    """Makes running `OpenAILoopback` servers from answers; they stop with the test."""
    with ExitStack() as stack:

        def make(
            *answers: Answer | When, requeue: bool = False, models: tuple[str, ...] = ("loopback",)
        ) -> OpenAILoopback:
            return stack.enter_context(OpenAILoopback(answers, requeue=requeue, models=models))

        yield make
