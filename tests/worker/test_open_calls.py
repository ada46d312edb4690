"""External calls whose process died: how often they are opened again, and what a retried plan makes of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from llm.testing import call
from plan import steering
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan, statuses
from tools import services
from tools.models import Approval, Question, ToolExecution
from tools.registry import Registry, tool
from tools.runs import MAX_ATTEMPTS, ClockTimestamp
from tools.types import ToolContext
from workspaces.models import User

pytestmark = pytest.mark.django_db(transaction=True)

ADD = "capstan_workspaces.add_workspace"
registry = Registry()
world: list[str] = []
deadly: list[bool] = []


class Killed(BaseException):
    """Ends the process, as far as everything above the tool can tell."""


def _reach(context: ToolContext) -> None:
    world.append(context.idempotency_key)
    if deadly:
        raise Killed


def _look(context: ToolContext) -> str | None:
    return "found" if context.idempotency_key in world else None


@tool(effect="external", permission=ADD, registry=registry)
def tell(context: ToolContext) -> str:
    """Tell the world."""
    _reach(context)
    return "told"


@tool(effect="external", permission=ADD, idempotent=True, registry=registry)
def notify(context: ToolContext) -> str:
    """Tell the world as often as you like."""
    _reach(context)
    return "notified"


@tool(effect="external", permission=ADD, probe=_look, registry=registry)
def make(context: ToolContext) -> str:
    """Make something that can be looked for."""
    _reach(context)
    return "made"


@pytest.fixture(autouse=True)
def _quiet_world():
    world.clear()
    deadly.clear()


def planned(*steps) -> ExecutionPlan:
    plan = hold_plan(*steps)
    plan.owner.is_superuser = True
    plan.owner.save()
    return plan


def die(plan: ExecutionPlan, agents, **options) -> None:
    """Run the plan until its process dies, and let its lease run out."""
    deadly.append(True)
    with pytest.raises(Killed):
        run_plan(plan, agents, **options)
    deadly.clear()
    ExecutionPlan.objects.filter(pk=plan.pk).update(lease_until=ClockTimestamp() - timedelta(seconds=1))
    plan.refresh_from_db()


@pytest.mark.parametrize("kind", ["data", "llm"])
def test_a_call_that_kills_its_process_each_time_is_given_up(kind, scripted_llm):
    step = data_step("go", "notify") if kind == "data" else llm_step("go")
    plan = planned(step)
    agents = agents_on(scripted_llm(call("notify")) if kind == "llm" else None, notify)
    while plan.attempts < MAX_ATTEMPTS:
        assert len(world) <= MAX_ATTEMPTS
        die(plan, agents, suspect=plan.attempts >= 2)
    assert steering.fail_spent_plans() == 1
    plan.refresh_from_db()
    assert (plan.status, plan.error) == ("failed", f"step go: {steering.SPENT}")
    row = ToolExecution.objects.get()
    assert (row.status, row.ended_at is not None) == ("unknown", True)
    assert "not known" in row.error


def cut_off(kind: str, tool_name: str, llm) -> ExecutionPlan:
    """A plan that was cancelled after its process died in an external call."""
    plan = planned(data_step("go", tool_name) if kind == "data" else llm_step("go"))
    die(plan, agents_on(llm, tell, notify, make))
    assert steering.cancel_plan(plan_id=plan.pk).ended
    assert ToolExecution.objects.get().status == "unknown"
    return plan


@pytest.mark.parametrize("kind", ["data", "llm"])
@pytest.mark.parametrize(("decision", "end"), [("approve", "succeeded"), ("reject", "failed")])
def test_a_retried_plan_asks_a_person_about_a_call_that_may_have_happened(kind, decision, end, scripted_llm):
    llm = scripted_llm(call("tell"), "Done.") if kind == "llm" else None
    plan = cut_off(kind, "tell", llm)
    again = steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())
    agents = agents_on(llm, tell, notify, make)
    run_plan(again, agents)
    assert (again.status, len(world)) == ("waiting_approval", 1)
    asked = Approval.objects.get()
    assert asked.question == Question.HAPPENED
    plan.owner.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    chief = User.objects.get(pk=plan.owner_id)
    services.decide(approval_id=asked.pk, user=chief, decision=decision, now=timezone.now(), tools=registry)
    run_plan(again, agents)
    assert len(world) == 1
    assert statuses(again)["go"] == ("failed" if (kind, decision) == ("data", "reject") else "completed")
    step = PlanStep.objects.get(plan=again)
    assert ToolExecution.objects.get(owner_id=step.pk).status == end


def test_a_retried_plan_asks_the_probe_first(scripted_llm):
    plan = cut_off("data", "make", None)
    again = steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())
    run_plan(again, agents_on(None, make))
    assert (again.status, len(world)) == ("completed", 1)
    assert PlanStep.objects.get(plan=again).result_json == "found"


def test_a_retry_runs_a_call_again_that_did_fail(scripted_llm):
    held = Registry()
    tries: list[str] = []

    @tool(effect="external", permission=ADD, registry=held)
    def knock(context: ToolContext) -> str:
        """Knock."""
        tries.append(context.idempotency_key)
        if len(tries) == 1:
            raise ValueError("nobody there")
        return "open"

    plan = planned(data_step("go", "knock"))
    agents = agents_on(None, knock)
    run_plan(plan, agents)
    assert plan.status == "failed"
    again = steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())
    run_plan(again, agents)
    assert again.status == "completed"
    assert tries[0] == tries[1]


def test_the_calls_of_a_fork_from_scratch_are_new_calls():
    plan = planned(data_step("go", "tell"))
    agents = agents_on(None, tell)
    run_plan(plan, agents)
    fork = steering.fork_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now(), from_key="go", from_scratch=True)
    run_plan(fork, agents)
    assert fork.status == "completed"
    assert len(set(world)) == 2
