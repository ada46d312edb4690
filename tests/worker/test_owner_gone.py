"""A plan whose owner leaves ends and says why; a step that cannot be stored fails alone (issue 4, CAP-036)."""

from __future__ import annotations

import pytest

from llm.testing import call
from llm.types import LLMResponse, ToolCall
from plan.models import StepMessage
from tests.support.plans import agents_on, data_step, events_of, hold_plan, llm_step, run_plan, statuses
from tests.support.runs import make_user
from tools.registry import Registry, tool
from tools.types import ToolContext
from worker.runner import Left
from workspaces.models import Membership, User

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()
REASON = "its owner is no active member of the workspace any more"
LONG_ID = "call_" + "i" * 300


@tool(effect="write", permission="capstan_workspaces.add_workspace", registry=registry)
def leave(context: ToolContext, how: str = "removed") -> str:
    """Take the owner's rights away."""
    if how == "deactivated":
        User.objects.filter(pk=context.user.pk).update(is_active=False)
    else:
        Membership.objects.filter(user=context.user.pk).delete()
    return "gone"


@tool(effect="read", registry=registry)
def look() -> str:
    """Look."""
    return "seen"


def held(*steps):
    return hold_plan(*steps, owner=make_user(is_superuser=True))


def failed_for_it(plan):
    assert (plan.status, plan.error) == ("failed", REASON)
    assert events_of(plan)[-1] == {"event": "plan_failed", "plan_id": plan.pk, "error": REASON, "step": ""}


@pytest.mark.parametrize("how", ["deactivated", "removed"])
def test_a_plan_whose_owner_leaves_during_a_step_asks_no_model_again(scripted_llm, how):
    llm = scripted_llm(call("leave", how=how), "never asked for", "nor this", leftovers=True)
    plan = held(llm_step("one"), llm_step("two"))
    assert run_plan(plan, agents_on(llm, leave, look)) == Left.ENDED
    failed_for_it(plan)
    assert (statuses(plan), len(llm.requests)) == ({"one": "skipped", "two": "skipped"}, 1)


def test_a_plan_whose_owner_left_before_it_began_asks_no_model(scripted_llm):
    llm = scripted_llm("never asked for", leftovers=True)
    plan = held(llm_step("one"))
    Membership.objects.all().delete()
    run_plan(plan, agents_on(llm))
    failed_for_it(plan)
    assert not llm.requests


def test_a_plan_of_optional_data_steps_does_not_complete_without_its_owner():
    plan = held(data_step("leave", "leave"), data_step("look", "look", is_critical=False))
    run_plan(plan, agents_on(None, leave, look))
    failed_for_it(plan)


def test_a_step_that_the_database_refuses_fails_alone(scripted_llm):
    """What no column takes is the step's own failure, not that of the worker, which would try again five times."""
    llm = scripted_llm(LLMResponse(content="Done.", model="m" * 300))
    plan = held(llm_step("one"))
    assert run_plan(plan, agents_on(llm)) == Left.ENDED
    assert plan.status == "failed"
    assert "unforeseen: DataError" in plan.error


def test_a_step_goes_on_after_a_call_with_a_long_name_and_id(scripted_llm):
    made = ToolCall(id=LONG_ID, name="n" * 300, arguments={})
    llm = scripted_llm(LLMResponse(content="", tool_calls=[made], stop_reason="tool_use"), "Recovered.")
    plan = held(llm_step("one"))
    run_plan(plan, agents_on(llm, look))
    assert plan.status == "completed"
    told = llm.requests[1].messages[-1]
    assert (told.tool_call_id, "unknown tool" in told.content) == (LONG_ID, True)
    assert len(StepMessage.objects.get(role="tool").tool_name) == 128
