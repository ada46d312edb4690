"""`check_llm` says what a model did, not what its server took (CAP-122)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from factory.tiers import llm_settings
from llm.errors import LLMBadRequest
from llm.testing import call, say
from llm.testing.replies import Answer, When
from llm.types import ModelRequest

pytestmark = pytest.mark.django_db

OK = '{"ok": true}'
Check = Callable[..., list[str]]


@pytest.fixture
def check(openai_loopback: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """What each tier's row says in the columns streaming, tools and structured."""

    def run(*, tools: Answer, structured: Answer = OK, plain: Answer = "ok") -> list[str]:
        model = openai_loopback(
            When(lambda request: bool(request.tools), tools, times=None),
            When(lambda request: "JSON" in request.messages[-1].content, structured, times=None),
            When(lambda request: True, plain, times=None),
        )
        for name, value in model.environment().items():
            monkeypatch.setenv(name, value)
        llm_settings.cache_clear()
        told = io.StringIO()
        call_command("check_llm", stdout=told)
        rows = told.getvalue().splitlines()[1:]
        assert [row.split()[:3] for row in rows] == [
            [t, "openai", "loopback"] for t in ("planning", "execution", "field")
        ]
        said = {" ".join(row.split()[4:]) for row in rows}
        assert len(said) == 1
        return said.pop()

    yield run
    llm_settings.cache_clear()


def test_a_model_that_calls_and_follows_says_yes(check: Check) -> None:
    offered: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Answer:
        offered.append(request)
        return call(request.tools[0]["name"], word="ready")

    assert check(tools=answer) == "yes yes yes"
    assert {request.tool_choice for request in offered} == {"auto"}


def test_a_model_that_only_talks_about_the_tool_did_not_call(check: Check) -> None:
    assert check(tools='say_back({"word": "ready"})') == "yes accepted, but did not call yes"


def test_another_tool_than_the_one_that_was_offered_is_no_call_of_it(check: Check) -> None:
    assert check(tools=call("sing")) == "yes accepted, but did not call yes"


def test_what_the_server_refuses_is_named(check: Check) -> None:
    assert check(tools=LLMBadRequest(reason="no tools here")) == "yes no (llm.bad_request) yes"


def test_an_answer_that_is_cut_before_the_call_is_no_yes(check: Check) -> None:
    said = check(tools=say("I will", stop_reason="max_tokens"))
    assert said == "yes accepted, but cut at 512 tokens yes"


@pytest.mark.parametrize("prose", ["ok", '{"ok": "perhaps"}'])
def test_a_schema_that_is_taken_and_not_followed_is_no_yes(check: Check, prose: str) -> None:
    assert check(tools=call("say_back", word="ready"), structured=prose) == "yes yes accepted, but did not follow"


def test_a_model_that_refuses_every_call_fails_the_command(check: Check) -> None:
    with pytest.raises(CommandError, match="not every tier answers") as failed:
        check(tools="-", plain=LLMBadRequest(reason="no"))
    assert failed.value.returncode == 1
