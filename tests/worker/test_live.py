"""A step's words reach its readers while it runs; a new owner withdraws what the old one showed (CAP-100)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis as redis_client

from events.models import channel_of
from llm.testing import call, say
from plan.models import ExecutionPlan, PlanStep
from streaming.live import drain
from tests.support.plans import agents_on, hold_plan, llm_step, run_plan
from tests.worker.test_runner import count_workspaces

pytestmark = pytest.mark.django_db(transaction=True)


def heard(redis: redis_client.Redis, plan: ExecutionPlan, work: Any) -> list[dict[str, Any]]:
    """The live messages on the plan's channel while `work` runs."""
    with redis.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(channel_of(plan.stream_id))
        subscription.get_message(timeout=5)
        work()
        assert drain(5)
        messages = []
        while (message := subscription.get_message(timeout=0.5)) is not None:
            if message["data"]:
                messages.append(json.loads(message["data"]))
    return messages


def test_the_words_of_a_step_are_shown_as_they_come(redis, scripted_llm):
    plan = hold_plan(llm_step("one"))
    step = PlanStep.objects.get(plan=plan)
    llm = scripted_llm(say("Two words.", pieces=["Two ", "words."]))
    told = heard(redis, plan, lambda: run_plan(plan, agents_on(llm)))
    tokens = [message for message in told if message["event"] == "token"]
    assert "".join(message["text"] for message in tokens) == "Two words."
    assert {(message["run"], message["round"], message["fence"]) for message in tokens} == {(f"step:{step.pk}", 1, 1)}


def test_a_new_owner_withdraws_what_was_shown(redis, scripted_llm):
    plan = hold_plan(llm_step("one"))
    agents = agents_on(scripted_llm(call("count_workspaces"), "Counted."), count_workspaces)
    run_plan(plan, agents, slice_s=0)
    told = heard(redis, plan, lambda: run_plan(plan, agents))
    assert [(message["event"], message["round"], message["fence"]) for message in told if "round" in message][:2] == [
        ("round_restarted", 2, 2),
        ("token", 2, 2),
    ]
