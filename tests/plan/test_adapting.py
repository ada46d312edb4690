"""Pending steps change under the plan's lock, each change on record; what has begun never does (CAP-055)."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission

from llm.testing import call
from plan.adapting import adapt_plan
from plan.agent_tools import adapt_plan as adapt_plan_tool
from plan.errors import NotAdaptable, PlanConflict, PlanInvalid
from plan.models import ExecutionPlan, PlanChange, PlanStep
from plan.types import StepChange, StepSpec
from tests.support.plans import agents_on, events_of, hold_plan, llm_step, run_plan
from tests.support.runs import make_user
from workspaces.models import Membership, User

pytestmark = pytest.mark.django_db


@pytest.fixture
def plan() -> ExecutionPlan:
    return hold_plan(llm_step("a"), llm_step("b"), llm_step("c"))


def change(plan: ExecutionPlan, *changes: StepChange, by: User | None = None) -> None:
    adapt_plan(plan_id=plan.pk, changes=changes, by=by or plan.owner)


def shape(plan: ExecutionPlan) -> list[tuple[int, str, list[str]]]:
    return list(PlanStep.objects.of(plan.pk).values_list("order", "key", "reads"))


def test_an_inserted_step_reads_the_one_before_and_is_read_by_the_one_behind(plan):
    change(plan, StepChange(op="insert", key="new", after="a", fields={"action": "Look closer."}))
    assert shape(plan) == [(1, "a", []), (2, "new", ["a"]), (3, "b", ["a", "new"]), (4, "c", ["b"])]
    written = PlanChange.objects.get()
    assert (written.action, written.before, written.after["key"], written.by) == ("insert", None, "new", plan.owner)
    assert events_of(plan)[-1]["event"] == "plan_adapted"


def test_a_removed_step_hands_its_reads_to_its_readers(plan):
    change(plan, StepChange(op="remove", key="b"))
    assert shape(plan) == [(1, "a", []), (3, "c", ["a"])]
    assert PlanChange.objects.get().before["action"] == "Do b."


def test_an_updated_step_keeps_its_place(plan):
    change(plan, StepChange(op="update", key="c", fields={"action": "Do it well.", "reads": ["a"]}))
    assert shape(plan)[2] == (3, "c", ["a"])
    assert PlanStep.objects.get(key="c").action == "Do it well."
    written = PlanChange.objects.get()
    assert (written.before["action"], written.after["action"]) == ("Do c.", "Do it well.")


def test_steps_are_reordered_among_themselves():
    plan = hold_plan(llm_step("a"), llm_step("b", reads=("a",)), llm_step("c", reads=("a",)))
    change(plan, StepChange(op="reorder", keys=("a", "c", "b")))
    assert [key for _order, key, _reads in shape(plan)] == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (StepChange(op="reorder", keys=("c", "b", "a")), "is no earlier step"),
        (StepChange(op="reorder", keys=("a", "b")), "every pending step once"),
        (StepChange(op="insert", key="a", fields={"action": "x"}), "used by another step"),
        (StepChange(op="insert", key="d", after="nowhere", fields={"action": "x"}), "no step 'nowhere'"),
        (StepChange(op="insert", key="d", fields={"action": ""}), "say what is to be done"),
        (StepChange(op="insert", key="d", fields={"action": "x", "kind": "data"}), "only templates make data steps"),
        (StepChange(op="update", key="b", fields={"reads": ["c"]}), "is no earlier step"),
        (StepChange(op="update", key="b", fields={"status": "completed"}), "a step has no 'status'"),
        (StepChange(op="explode", key="b"), "one of insert, remove, update, reorder"),
    ],
)
def test_a_change_that_would_break_the_plan_changes_nothing(plan, wrong, says):
    before = shape(plan)
    with pytest.raises(PlanInvalid) as raised:
        change(plan, StepChange(op="update", key="c", fields={"action": "First of two."}), wrong)
    assert says in str(raised.value.details["problems"])
    assert shape(plan) == before
    assert PlanStep.objects.get(key="c").action == "Do c."
    assert not PlanChange.objects.exists()


@pytest.mark.parametrize("status", ["running", "completed", "failed", "skipped", "waiting_approval"])
@pytest.mark.parametrize("op", ["remove", "update"])
def test_what_has_begun_never_changes(plan, status, op):
    PlanStep.objects.filter(key="a").update(status=status, llm_synthesis="said")
    with pytest.raises(PlanConflict):
        change(plan, StepChange(op=op, key="a", fields={"action": "x"} if op == "update" else {}))


def test_nothing_is_inserted_before_what_has_begun(plan):
    PlanStep.objects.filter(key="b").update(status="running")
    with pytest.raises(PlanConflict):
        change(plan, StepChange(op="insert", key="new", after="a", fields={"action": "x"}))


def test_only_those_whom_the_plan_names_may_change_it(plan):
    stranger = make_user()
    Membership.objects.create(user=stranger, workspace=plan.workspace)
    one = StepChange(op="remove", key="c")
    with pytest.raises(NotAdaptable):
        change(plan, one, by=stranger)
    stranger.user_permissions.add(Permission.objects.get(codename="adapt_executionplan"))
    change(plan, one, by=User.objects.get(pk=stranger.pk))
    ExecutionPlan.objects.update(adaptable=False)
    with pytest.raises(NotAdaptable):
        change(plan, StepChange(op="remove", key="b"))


def test_an_adapted_plan_that_waited_goes_back_to_the_queue(plan):
    PlanStep.objects.filter(key="a").update(status="waiting_approval")
    ExecutionPlan.objects.update(status="waiting_approval")
    change(plan, StepChange(op="update", key="b", fields={"reads": []}))
    plan.refresh_from_db()
    assert plan.status == "pending"


@pytest.mark.django_db(transaction=True)
def test_a_planning_step_changes_the_plan_it_belongs_to(scripted_llm):
    plan = hold_plan(StepSpec(key="plan", action="Plan.", kind="planning"), llm_step("do"))
    plan.owner.user_permissions.add(Permission.objects.get(codename="adapt_executionplan"))
    llm = scripted_llm(
        call("adapt_plan", changes=[{"op": "insert", "key": "check", "after": "do", "action": "Check it."}]),
        "I have added a check.",
        "Done.",
        "Checked.",
    )
    run_plan(plan, agents_on(llm, adapt_plan_tool))
    assert plan.status == "completed", plan.error
    assert [key for _order, key, _reads in shape(plan)] == ["plan", "do", "check"]
    assert PlanChange.objects.get().by_step.key == "plan"
    assert llm.requests[0].thinking_tokens > 0


@pytest.mark.django_db(transaction=True)
def test_an_llm_step_may_not_change_its_plan(scripted_llm):
    plan = hold_plan(llm_step("a"), llm_step("b"))
    plan.owner.user_permissions.add(Permission.objects.get(codename="adapt_executionplan"))
    llm = scripted_llm(call("adapt_plan", changes=[{"op": "remove", "key": "b"}]), "It was refused.", "B.")
    run_plan(plan, agents_on(llm, adapt_plan_tool))
    assert plan.status == "completed"
    assert not PlanChange.objects.exists()
