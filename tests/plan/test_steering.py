"""Cancel, retry and fork from outside, and what recovery ends (design § 5.6, § 6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from llm.errors import LLMBadRequest
from llm.testing import call
from plan import steering
from plan.errors import OutcomeInvalid, PlanConflict
from plan.models import ExecutionPlan, PlanStep, StepMessage
from tests.support.plans import agents_on, events_of, hold_plan, llm_step, run_plan, statuses
from tests.support.runs import claim
from tests.worker.test_runner import count_workspaces
from tools.runs import MAX_ATTEMPTS, ClockTimestamp

pytestmark = pytest.mark.django_db


def lose_the_owner(plan: ExecutionPlan) -> None:
    ExecutionPlan.objects.filter(pk=plan.pk).update(lease_until=ClockTimestamp() - timedelta(seconds=1))


@pytest.mark.parametrize("status", ["pending", "waiting_approval", "waiting_retry"])
def test_a_plan_that_nobody_runs_is_cancelled_at_once(status):
    plan = hold_plan(llm_step("a"))
    ExecutionPlan.objects.filter(pk=plan.pk).update(status=status)
    assert steering.cancel_plan(plan_id=plan.pk) == steering.Cancelled(status="cancelled", ended=True)
    plan.refresh_from_db()
    assert (plan.status, statuses(plan)) == ("cancelled", {"a": "skipped"})
    assert steering.cancel_plan(plan_id=plan.pk).ended
    assert [e["event"] for e in events_of(plan)] == ["plan_created", "plan_cancelled"]


def test_a_plan_with_a_live_owner_is_asked_and_the_sweep_ends_it_when_the_owner_dies():
    plan = hold_plan(llm_step("a"))
    claim(plan)
    assert steering.cancel_plan(plan_id=plan.pk).ended is False
    assert steering.cancel_orphan_plans() == 0
    lose_the_owner(plan)
    assert steering.cancel_orphan_plans() == 1
    plan.refresh_from_db()
    assert plan.status == "cancelled"


def test_a_plan_whose_attempts_are_used_up_fails_with_the_reason():
    plan = hold_plan(llm_step("a"))
    for attempt in range(MAX_ATTEMPTS):
        assert ExecutionPlan.objects.claim(plan.pk, owner="dies", suspect=attempt >= 2)
        assert steering.fail_spent_plans() == 0
        lose_the_owner(plan)
    assert ExecutionPlan.objects.claim(plan.pk, owner="no more", suspect=True) is None
    assert steering.fail_spent_plans() == 1
    plan.refresh_from_db()
    assert (plan.status, plan.error) == ("failed", steering.SPENT)
    assert events_of(plan)[-1]["event"] == "plan_failed"


@pytest.mark.django_db(transaction=True)
def test_retry_goes_on_from_the_failed_step_with_its_journal(scripted_llm):
    llm = scripted_llm("One.", call("count_workspaces"), LLMBadRequest(), "Two.", "Three.")
    plan = hold_plan(llm_step("one"), llm_step("two"), llm_step("three"))
    agents = agents_on(llm, count_workspaces)
    run_plan(plan, agents)
    assert statuses(plan) == {"one": "completed", "two": "failed", "three": "skipped"}
    again = steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())
    assert (again.retry_of_id, statuses(again)) == (
        plan.pk,
        {"one": "completed", "two": "pending", "three": "pending"},
    )
    run_plan(again, agents)
    assert again.status == "completed"
    assert [step.llm_synthesis for step in PlanStep.objects.of(again.pk)] == ["One.", "Two.", "Three."]
    assert StepMessage.objects.filter(step__plan=again, role="tool").count() == 1  # copied, not called again
    plan.refresh_from_db()
    assert plan.status == "failed"  # what has ended never changes


@pytest.mark.django_db(transaction=True)
def test_only_a_plan_that_failed_or_was_cancelled_is_retried(scripted_llm):
    plan = hold_plan(llm_step("one"))
    with pytest.raises(PlanConflict):
        steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())
    run_plan(plan, agents_on(scripted_llm("Done.")))
    with pytest.raises(PlanConflict):
        steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())


@pytest.mark.django_db(transaction=True)
def test_of_three_retries_at_once_one_forks_and_the_others_name_its_fork():
    plan = hold_plan(llm_step("one"))
    steering.cancel_plan(plan_id=plan.pk)

    def retry(_: int) -> tuple[str, int]:
        try:
            return "made", steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now()).pk
        except PlanConflict as exc:
            return "refused", exc.details["fork"]
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as threads:
        came = list(threads.map(retry, range(3)))
    assert sorted(word for word, _ in came) == ["made", "refused", "refused"]
    assert len({key for _, key in came}) == 1
    fork = ExecutionPlan.objects.get(retry_of=plan)
    steering.cancel_plan(plan_id=fork.pk)
    assert steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now()).retry_of_id == plan.pk


@pytest.mark.django_db(transaction=True)
def test_a_fork_from_scratch_leaves_the_journal_behind(scripted_llm):
    plan = hold_plan(llm_step("one"), llm_step("two"))
    run_plan(plan, agents_on(scripted_llm("One.", "Two.")))
    fork = steering.fork_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now(), from_key="two", from_scratch=True)
    assert statuses(fork) == {"one": "completed", "two": "pending"}
    run_plan(fork, agents_on(scripted_llm("Two, anew.")))
    assert PlanStep.objects.get(plan=fork, key="two").llm_synthesis == "Two, anew."


@pytest.mark.parametrize("status", ["waiting_approval", "waiting_retry"])
def test_a_plan_that_waits_for_nothing_is_woken(status):
    plan = hold_plan(llm_step("a"), llm_step("b"))
    ExecutionPlan.objects.filter(pk=plan.pk).update(status=status, not_before=timezone.now() + timedelta(days=1))
    assert steering.wake_idle_plans() == 1
    plan.refresh_from_db()
    assert (plan.status, plan.not_before) == ("pending", None)
    assert steering.wake_idle_plans() == 0


def test_people_assess_steps_that_have_ended():
    plan = hold_plan(llm_step("a"), llm_step("b"))
    PlanStep.objects.filter(key="a").update(status="completed", llm_synthesis="said")
    steering.assess_step(plan_id=plan.pk, key="a", by=plan.owner, satisfaction=2, suggestion="Name the files.")
    step = PlanStep.objects.get(key="a")
    assert (step.outcome_satisfaction, step.improvement_suggestion) == (2, "Name the files.")
    assert events_of(plan)[-1]["assessed_by"] == plan.owner_id
    with pytest.raises(PlanConflict):
        steering.assess_step(plan_id=plan.pk, key="b", by=plan.owner, satisfaction=2)
    for wrong in ({"satisfaction": 6}, {"satisfaction": None}, {"satisfaction": 3, "assessment": "x" * 4_001}):
        with pytest.raises(OutcomeInvalid):
            steering.assess_step(plan_id=plan.pk, key="a", by=plan.owner, **wrong)


@pytest.mark.django_db(transaction=True)
def test_a_fork_keeps_the_journal_of_its_first_step_and_asks_for_its_answer_anew(scripted_llm):
    llm = scripted_llm("One.", call("count_workspaces"), "Two.", call("count_workspaces"), "Three.")
    plan = hold_plan(llm_step("one"), llm_step("two"), llm_step("three"))
    run_plan(plan, agents_on(llm, count_workspaces))
    fork = steering.fork_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now(), from_key="two")
    copied = StepMessage.objects.filter(step__plan=fork).values_list("step__key", "round", "role")
    assert list(copied) == [("two", 0, "user"), ("two", 1, "assistant"), ("two", 1, "tool")]
    again = scripted_llm("Two, again.", "Three, again.")
    run_plan(fork, agents_on(again, count_workspaces))
    assert fork.status == "completed", fork.error
    assert [message.role for message in again.requests[0].messages] == ["user", "assistant", "tool"]
