"""A worker runs plans on a real database; only the model is scripted (CAP-050 – 054, CAP-060, CAP-061)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection

from llm.errors import LLMBadRequest, RateLimitError
from llm.testing import Gate, call, held, say, user_said
from plan import steering
from plan.models import ExecutionPlan, PlanStep, StepMessage
from tests.support.plans import agents_on, data_step, events_of, hold_plan, llm_step, run_plan, statuses
from tests.support.waiting import wait_until
from tools.registry import Registry, tool
from tools.runs import ClockTimestamp
from tools.types import ToolContext
from worker.runner import Left
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()


@tool(effect="read", registry=registry)
def count_workspaces(context: ToolContext) -> dict[str, int]:
    """How many workspaces there are."""
    return {"count": Workspace.objects.count()}


@tool(effect="write", permission="capstan_workspaces.add_workspace", registry=registry)
def add_workspace(context: ToolContext, slug: str, name: str = "new") -> dict[str, str]:
    """Add a workspace."""
    Workspace.objects.create(slug=slug, name=name)
    return {"slug": slug}


def test_cap_060_worker_completes_all_steps(scripted_llm):
    llm = scripted_llm("First finding.", "Second finding.", "The result.")
    plan = hold_plan(llm_step("one"), llm_step("two"), llm_step("three"))
    assert run_plan(plan, agents_on(llm)) == Left.ENDED
    assert plan.status == "completed"
    assert [step.llm_synthesis for step in PlanStep.objects.of(plan.pk)] == [
        "First finding.",
        "Second finding.",
        "The result.",
    ]
    assert {step.model_used for step in PlanStep.objects.of(plan.pk)} == {"scripted"}
    assert events_of(plan)[-1] == {"event": "plan_completed", "plan_id": plan.pk, "result": "The result."}
    assert [(e["step"], e["status"]) for e in events_of(plan, "plan_step")] == [
        ("one", "running"), ("one", "completed"), ("two", "running"), ("two", "completed"),
        ("three", "running"), ("three", "completed"),
    ]  # fmt: skip


def test_cap_054_later_steps_are_told_what_earlier_ones_found(scripted_llm):
    llm = scripted_llm("Auth has three parts.", "Split it in two.")
    run_plan(hold_plan(llm_step("look"), llm_step("propose")), agents_on(llm))
    asked = [request.messages[0].content for request in llm.requests]
    assert "Auth has three parts." not in asked[0]
    assert "[look] Do look.\nAuth has three parts." in asked[1]


def test_cap_051_completed_step_not_rerun_on_retry(scripted_llm):
    llm = scripted_llm("One.", RateLimitError(retry_after_s=60), "Two.")
    plan = hold_plan(llm_step("one"), llm_step("two"))
    assert run_plan(plan, agents_on(llm)) == Left.WAITING
    assert (plan.status, statuses(plan)) == ("waiting_retry", {"one": "completed", "two": "waiting_retry"})
    assert plan.lease_until is None
    [waiting] = [event for event in events_of(plan, "plan_step") if event["status"] == "waiting_retry"]
    assert waiting["not_before"] == PlanStep.objects.get(key="two").not_before.isoformat()
    assert run_plan(plan, agents_on(llm)) == Left.NOT_FREE  # not before its time
    later = ClockTimestamp() - timedelta(seconds=1)
    ExecutionPlan.objects.update(not_before=later)
    PlanStep.objects.filter(key="two").update(not_before=later)
    assert run_plan(plan, agents_on(llm)) == Left.ENDED
    assert [step.llm_synthesis for step in PlanStep.objects.of(plan.pk)] == ["One.", "Two."]
    assert events_of(plan, "rate_limit")[0]["retry_after_s"] == 60


def test_a_data_step_calls_its_tool_and_the_next_one_reads_its_result(scripted_llm):
    plan = hold_plan(
        data_step("count", "count_workspaces"),
        data_step("add", "add_workspace", {"slug": "made-here", "name": {"$from": "context.name"}}),
        data_step("again", "add_workspace", {"slug": "second", "name": {"$from": "add.slug"}}),
        context_json={"name": "From context"},
    )
    plan.owner.is_superuser = True
    plan.owner.save()
    assert run_plan(plan, agents_on(None, count_workspaces, add_workspace)) == Left.ENDED
    assert plan.status == "completed", plan.error
    assert Workspace.objects.get(slug="made-here").name == "From context"
    assert Workspace.objects.get(slug="second").name == "made-here"
    assert PlanStep.objects.get(key="count").result_json["count"] >= 1


def test_a_data_step_without_permission_fails_the_plan():
    plan = hold_plan(data_step("add", "add_workspace", {"slug": "never"}), llm_step("after"))
    run_plan(plan, agents_on(None, add_workspace))
    assert (plan.status, statuses(plan)) == ("failed", {"add": "failed", "after": "skipped"})
    assert not Workspace.objects.filter(slug="never").exists()
    assert events_of(plan)[-1]["event"] == "plan_failed"


def test_a_failed_step_that_is_not_critical_is_told_to_later_ones(scripted_llm):
    llm = scripted_llm(LLMBadRequest(), "Went on without it.")
    plan = hold_plan(llm_step("try", is_critical=False), llm_step("go_on"))
    run_plan(plan, agents_on(llm))
    assert (plan.status, statuses(plan)) == ("completed", {"try": "failed", "go_on": "completed"})
    assert "This step failed" in llm.requests[1].messages[0].content


def test_an_empty_answer_fails_the_step_by_its_synthesis(scripted_llm):
    plan = hold_plan(llm_step("one"))
    run_plan(plan, agents_on(scripted_llm(say("", pieces=[]))))
    assert plan.status == "failed"
    assert "plan.synthesis_quality" in plan.error


def test_independent_steps_run_side_by_side(scripted_llm):
    both = Gate()
    llm = scripted_llm("The sum.")
    llm.when(user_said("Do left."), held(both, "Left."))
    llm.when(user_said("Do right."), held(both, "Right."))
    plan = hold_plan(llm_step("left", reads=()), llm_step("right", reads=()), llm_step("sum", reads=("left", "right")))

    def open_when_both_are_asked() -> None:
        wait_until(lambda: len(llm.requests) == 2)
        both.open()

    opener = threading.Thread(target=open_when_both_are_asked)
    opener.start()
    assert run_plan(plan, agents_on(llm)) == Left.ENDED
    opener.join()
    assert plan.status == "completed"
    assert set(statuses(plan).values()) == {"completed"}


def test_the_worker_leaves_between_steps_when_its_slice_is_over(scripted_llm):
    llm = scripted_llm("One.", "Two.")
    plan = hold_plan(llm_step("one"), llm_step("two"))
    assert run_plan(plan, agents_on(llm), slice_s=0) == Left.HANDED_BACK
    assert (plan.status, statuses(plan)) == ("pending", {"one": "completed", "two": "pending"})
    assert run_plan(plan, agents_on(llm)) == Left.ENDED


def test_a_cancel_ends_the_model_call_and_the_plan(scripted_llm):
    gate = Gate()
    llm = scripted_llm(held(gate, "Never."))
    plan = hold_plan(llm_step("one"), llm_step("two"))

    def cancel() -> None:
        wait_until(lambda: len(llm.requests) == 1)
        assert steering.cancel_plan(plan_id=plan.pk).ended is False
        connection.close()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert run_plan(plan, agents_on(llm)) == Left.ENDED
    thread.join()
    assert (plan.status, statuses(plan)) == ("cancelled", {"one": "skipped", "two": "skipped"})
    assert events_of(plan)[-1]["event"] == "plan_cancelled"


def test_a_step_goes_on_from_its_journal_when_its_owner_leaves_between_rounds(scripted_llm):
    llm = scripted_llm(call("count_workspaces"), "Counted.")
    plan = hold_plan(llm_step("one"))
    agents = agents_on(llm, count_workspaces)
    assert run_plan(plan, agents, slice_s=0) == Left.HANDED_BACK
    assert (plan.status, statuses(plan)) == ("pending", {"one": "pending"})
    assert list(StepMessage.objects.values_list("round", "role")) == [(0, "user"), (1, "assistant"), (1, "tool")]
    assert run_plan(plan, agents) == Left.ENDED
    assert plan.status == "completed"
    assert [message.role for message in llm.requests[1].messages] == ["user", "assistant", "tool"]


def test_a_completed_plan_is_left_alone(scripted_llm):
    plan = hold_plan(llm_step("one"))
    run_plan(plan, agents_on(scripted_llm("Done.")))
    before = len(events_of(plan))
    assert run_plan(plan, agents_on(scripted_llm("x", leftovers=True))) == Left.NOT_FREE
    assert len(events_of(plan)) == before
