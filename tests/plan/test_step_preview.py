"""The admin shows a step's journal and exactly what its model gets (CAP-020)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from llm.errors import LLMPermissionError
from llm.testing import ScriptedLLM, call, say
from loop.preview import NO_REQUEST
from plan.models import PlanStep
from prompt.services import publish_recipe
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan
from tests.support.runs import make_user
from worker.preview import preview_of
from worker.runner import Left

pytestmark = pytest.mark.django_db(transaction=True)


def text_of(message: Any) -> str:
    made = [f"→ {one['name']}({json.dumps(one['arguments'], ensure_ascii=False)})" for one in message.tool_calls]
    return "\n".join([message.content, *made] if message.content else made)


def test_the_preview_is_the_last_request_that_the_model_got() -> None:
    publish_recipe(name="look", prompt_template="Look closely.")
    owner = make_user(is_superuser=True, is_staff=True)
    llm = ScriptedLLM([call("catalog_overview"), say("One is seen."), say("Two is seen.")])
    plan = hold_plan(llm_step("one", recipe="look"), llm_step("two"), owner=owner)
    while run_plan(plan, agents_on(llm)) == Left.HANDED_BACK:
        pass
    for step, sent in zip(PlanStep.objects.of(plan.pk), (llm.requests[1], llm.requests[2]), strict=True):
        parts = preview_of(step)
        told = [block.text for block in sent.system] + [text_of(message) for message in sent.messages]
        assert [part.text for part in parts[1:]] == told
        marks = [block.cache for block in sent.system] + [message.cache for message in sent.messages]
        assert [part.cached for part in parts[1:]] == marks
        assert parts[0].title == f"tools ({len(sent.tools)})"

    browser = Client()
    browser.force_login(owner)
    step = PlanStep.objects.of(plan.pk)[0]
    page = browser.get(reverse("admin:capstan_plan_planstep_change", args=[step.pk])).content.decode()
    for piece in ("What the model gets", "Look closely.", "One is seen.", "cached up to here"):
        assert piece in page
    assert 'name="_save"' not in page
    of_plan = browser.get(reverse("admin:capstan_plan_executionplan_change", args=[plan.pk])).content.decode()
    assert reverse("admin:capstan_plan_planstep_change", args=[step.pk]) in of_plan
    assert browser.get(reverse("admin:capstan_plan_planstep_changelist")).status_code == 200
    stranger = Client()
    stranger.force_login(make_user(is_staff=True))
    assert stranger.get(reverse("admin:capstan_plan_planstep_change", args=[step.pk])).status_code in {302, 403, 404}


def test_a_step_that_has_not_begun_shows_what_it_would_be_asked_and_a_data_step_asks_nobody() -> None:
    owner = make_user(is_superuser=True, is_staff=True)
    plan = hold_plan(data_step("look", "catalog_overview"), llm_step("one"), owner=owner)
    look, one = PlanStep.objects.of(plan.pk)
    assert preview_of(one)[-1].text.startswith("Step 2, one: Do one.")
    browser = Client()
    browser.force_login(owner)
    page = browser.get(reverse("admin:capstan_plan_planstep_change", args=[look.pk])).content.decode()
    assert "A data step asks no model." in page


def test_the_preview_of_a_step_that_failed_is_the_request_that_failed_and_a_skipped_one_made_none() -> None:
    llm = ScriptedLLM([call("catalog_overview"), LLMPermissionError()])
    plan = hold_plan(llm_step("one"), llm_step("two"))
    assert run_plan(plan, agents_on(llm)) == Left.ENDED
    one, two = PlanStep.objects.of(plan.pk)
    assert (one.status, two.status) == ("failed", "skipped")
    sent = llm.requests[-1]
    told = [block.text for block in sent.system] + [text_of(message) for message in sent.messages]
    assert [part.text for part in preview_of(one)[1:]] == told
    assert preview_of(two) == [NO_REQUEST]
