"""Steps whose calls wait for a person: the plan parks, a decision resumes it, and an end takes the question back."""

from __future__ import annotations

from functools import partial

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from llm.testing import call
from plan import steering
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan, statuses
from tests.support.runs import make_user
from tools import services
from tools.models import Approval
from tools.registry import Registry, tool
from tools.types import ToolContext
from worker.runner import Left
from workspaces.models import Membership, User, Workspace

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()
PERMISSION = "capstan_workspaces.add_workspace"


@tool(effect="write", permission=PERMISSION, approval="call", registry=registry)
def found_workspace(context: ToolContext, slug: str) -> dict[str, str]:
    """Found a workspace, when a person agrees."""
    Workspace.objects.create(slug=slug, name="new")
    return {"slug": slug}


decide = partial(services.decide, tools=registry)  # the tools of this file, in place of the process's


def allowed(user: User) -> User:
    user.user_permissions.add(*Permission.objects.filter(codename__in=("add_workspace", "decide_approval")))
    return User.objects.get(pk=user.pk)


def approver_of(plan: ExecutionPlan) -> User:
    user = make_user()
    Membership.objects.create(user=user, workspace=plan.workspace)
    return allowed(user)


def waiting_plan(*steps):
    owner = allowed(make_user())
    from tests.support.runs import make_workspace

    return hold_plan(*steps, owner=owner, workspace=make_workspace(owner))


def test_a_data_step_waits_and_goes_on_when_a_person_agrees():
    plan = waiting_plan(data_step("found", "found_workspace", {"slug": "agreed"}), llm_step("after", reads=("found",)))
    agents = agents_on(None, found_workspace)
    assert run_plan(plan, agents) == Left.WAITING
    assert (plan.status, statuses(plan)["found"]) == ("waiting_approval", "waiting_approval")
    assert not Workspace.objects.filter(slug="agreed").exists()
    assert run_plan(plan, agents) == Left.NOT_FREE
    decide(approval_id=Approval.objects.get().pk, user=approver_of(plan), decision="approve", now=timezone.now())
    plan.refresh_from_db()
    assert (plan.status, statuses(plan)["found"]) == ("pending", "pending")
    run_plan(plan, agents_on(_says("After."), found_workspace))
    assert plan.status == "completed", plan.error
    assert Workspace.objects.filter(slug="agreed").count() == 1


def _says(*answers):
    from llm.testing import ScriptedLLM

    return ScriptedLLM(answers)


def test_an_llm_step_hears_that_its_call_was_rejected(scripted_llm):
    plan = waiting_plan(llm_step("found"))
    llm = scripted_llm(call("found_workspace", slug="refused"), "It was refused.")
    run_plan(plan, agents_on(llm, found_workspace))
    assert plan.status == "waiting_approval"
    decide(
        approval_id=Approval.objects.get().pk,
        user=approver_of(plan),
        decision="reject",
        note="not now",
        now=timezone.now(),
    )
    run_plan(plan, agents_on(llm, found_workspace))
    assert (plan.status, PlanStep.objects.get(plan=plan).llm_synthesis) == ("completed", "It was refused.")
    assert "not now" in llm.requests[1].messages[-1].content
    assert not Workspace.objects.filter(slug="refused").exists()


def test_other_steps_go_on_while_one_waits(scripted_llm):
    plan = waiting_plan(
        data_step("found", "found_workspace", {"slug": "later"}), llm_step("beside", reads=()), llm_step("both")
    )
    assert run_plan(plan, agents_on(scripted_llm("Beside.", "Both."), found_workspace)) == Left.WAITING
    assert plan.status == "waiting_approval"
    assert statuses(plan) == {"found": "waiting_approval", "beside": "completed", "both": "completed"}


def test_a_cancel_takes_the_question_back():
    plan = waiting_plan(data_step("found", "found_workspace", {"slug": "never"}))
    run_plan(plan, agents_on(None, found_workspace))
    assert steering.cancel_plan(plan_id=plan.pk).ended
    assert Approval.objects.get().status == "withdrawn"
