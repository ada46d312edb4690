"""Validate before the model: what recipes and pipelines name is run before a turn, a step or a batch (CAP-023)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.utils import timezone

from chat import services as chat_services
from chat.runner import run_turn
from events.models import Stream
from factory.agents import create_agent
from factory.field import create_field_agent
from factory.pipelines import enqueue_compiled_plan
from llm.testing import ScriptedLLM, say
from observability.models import AgentInteraction
from plan.models import ExecutionPlan, PlanStep
from plan.templates import _templates, register_template
from plan.types import PlanTemplate
from prompt.errors import InputInvalid
from prompt.services import publish_recipe
from prompt.validate import validator, validators
from tests.support.plans import agents_on, hold_plan, llm_step, run_plan
from tests.support.runs import make_user, make_workspace

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def short() -> Iterator[None]:
    """A check that a domain app could bring: at most twenty characters."""
    known = dict(validators)

    @validator("short_text")
    def short_text(data: Mapping[str, Any]) -> list[str]:
        size = len(str(data.get("text", "")))
        return [f"text: has {size} characters, 20 are taken"] if size > 20 else []

    publish_recipe(name="short", prompt_template="Be short.", validators=["short_text", "non_blank_text"])
    yield
    validators.clear()
    validators.update(known)


def test_a_turn_whose_question_is_refused_asks_no_model() -> None:
    user = make_user()
    conversation = chat_services.create_conversation(user=user, workspace=make_workspace(user), now=timezone.now())
    llm = ScriptedLLM([say("Short.")])

    def ask(text: str) -> Any:
        turn = chat_services.send_message(
            conversation_id=conversation.pk,
            author=user,
            text=text,
            respond_async=True,
            correlation_id="c",
            now=timezone.now(),
            recipe="short",
        )
        return run_turn(
            turn.pk,
            agents=lambda name, *, mode="conversation", tier=None: create_agent(name, llm=llm, mode=mode, tier=tier),
            clock=timezone.now,
        )

    refused = ask("x" * 21)
    assert (refused.status, refused.stop_reason, llm.requests) == ("failed", "prompt.input_invalid", [])
    assert "has 21 characters" in refused.error
    assert ask("x" * 20).answer == "Short."


def test_a_step_whose_action_is_refused_asks_no_model() -> None:
    llm = ScriptedLLM([say("never")])
    plan = hold_plan(llm_step("a_key_that_is_long_enough", recipe="short"))
    run_plan(plan, agents_on(llm))
    step = PlanStep.objects.get(plan=plan)
    assert (plan.status, step.status, llm.requests) == ("failed", "failed", [])
    assert "20 are taken" in step.error
    assert AgentInteraction.objects.count() == 0


def test_a_pipeline_whose_context_is_refused_holds_nothing() -> None:
    owner = make_user()
    workspace = make_workspace(owner)
    kept = dict(_templates)
    register_template(
        PlanTemplate(id="survey-shortly", goal="Survey", steps=(llm_step("look"),), validators=("short_text",))
    )
    before = Stream.objects.count()
    try:
        with pytest.raises(InputInvalid) as caught:
            enqueue_compiled_plan("survey-shortly", {"text": "x" * 30}, owner=owner, workspace=workspace)
        assert caught.value.details["problems"] == ["text: has 30 characters, 20 are taken"]
        assert (ExecutionPlan.objects.count(), Stream.objects.count()) == (0, before)
        assert enqueue_compiled_plan("survey-shortly", {"text": "auth"}, owner=owner, workspace=workspace)
    finally:
        _templates.clear()
        _templates.update(kept)


def test_a_batch_that_is_refused_asks_no_model() -> None:
    llm = ScriptedLLM(["[]"])
    agent = create_field_agent(llm=llm, validators=("non_blank_text", "short_text"))
    for text in ("  ", "x" * 21):
        with pytest.raises(InputInvalid):
            agent.extract_candidates(text)
    assert llm.requests == []
    assert agent.extract_candidates("short") == []
