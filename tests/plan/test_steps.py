"""The arrows of steps, and when a step is ready (CAP-051, CAP-052, CAP-054)."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import IntegrityError, connection

from plan import services
from plan.errors import SynthesisQualityError
from plan.models import ExecutionPlan, PlanStep, StepMessage, StepStatus
from plan.services import Recorded
from tests.support.plans import data_step, events_of, hold_plan, llm_step
from tests.support.runs import claim, make_plan
from tools.runs import RunStatus
from tools.units import unit

pytestmark = pytest.mark.django_db


def step_of(plan: ExecutionPlan, key: str) -> PlanStep:
    return PlanStep.objects.get(plan=plan, key=key)


def force(plan: ExecutionPlan, key: str, status: str) -> None:
    PlanStep.objects.filter(plan=plan, key=key).update(
        status=status, llm_synthesis="said", not_before="2030-01-01T00:00Z"
    )


def ready(plan: ExecutionPlan) -> list[str]:
    return [PlanStep.objects.get(pk=pk).key for pk in PlanStep.objects.next_ready(plan.pk, limit=9)]


@pytest.mark.django_db(transaction=True)
def test_cap_052_a_plan_is_claimed_once_when_workers_race():
    plan = make_plan()

    def claim_on_own_connection(pk, owner):
        try:
            return ExecutionPlan.objects.claim(pk, owner=owner)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(partial(claim_on_own_connection, plan.pk), "abcdefgh"))
    plan.refresh_from_db()
    assert [c.fence for c in claims if c] == [plan.fence]
    assert (plan.status, plan.attempts) == (RunStatus.RUNNING, 1)


@pytest.mark.parametrize("status", StepStatus.values)
@pytest.mark.parametrize("critical", [True, False])
def test_a_step_is_ready_when_what_it_reads_has_ended(status, critical):
    plan = hold_plan(llm_step("a", is_critical=critical), llm_step("b"))
    force(plan, "a", status)
    goes_on = status in {"completed", "skipped"} or (status == "failed" and not critical)
    assert ("b" in ready(plan)) is goes_on


def test_a_step_waits_for_all_that_it_reads():
    plan = hold_plan(llm_step("a"), llm_step("b", reads=()), llm_step("c", reads=("a", "b")))
    assert ready(plan) == ["a", "b"]
    for first, second in itertools.permutations("ab"):
        force(plan, first, "completed")
        force(plan, second, "running")
        assert ready(plan) == []
    force(plan, "a", "completed")
    force(plan, "b", "completed")
    assert ready(plan) == ["c"]


@pytest.mark.parametrize("status", ["completed", "failed", "skipped"])
def test_what_has_ended_never_changes(status):
    plan = hold_plan(llm_step("a"))
    force(plan, "a", status)
    step = step_of(plan, "a")
    rows = PlanStep.objects
    assert not rows.start(step.pk)
    assert not rows.complete(step.pk, result={}, synthesis="x")
    assert not rows.fail(step.pk, error="x")
    assert rows.wait_for_retry(step.pk, seconds=1, error="x") is None
    assert not rows.wait_for_approval(step.pk)
    assert rows.skip_rest(plan.pk) == rows.hand_back(plan.pk) == 0
    assert step_of(plan, "a").status == status


@pytest.mark.django_db(transaction=True)
def test_two_units_that_end_the_last_read_steps_start_their_reader_once():
    plan = hold_plan(data_step("a", "t"), data_step("b", "t", reads=()), data_step("c", "t", reads=("a", "b")))
    run = claim(plan)
    PlanStep.objects.filter(plan=plan, key__in="ab").update(status="running")
    started: list[str] = []

    def end(key):
        try:
            with unit(run) as opened:

                def closing():
                    services.complete_step(step=step_of(plan, key), result=1, synthesis="", events=opened)
                    settled = services.settle(plan_id=plan.pk, events=opened, slots=4)
                    started.extend(step.key for step in settled.started)
                    return settled.arrow

                opened.close_with(closing)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(end, "ab"))
    assert started == ["c"]
    plan.refresh_from_db()
    assert plan.status == "running"


@pytest.mark.parametrize("said", [None, "", "something else"], ids=["no round", "empty", "another text"])
def test_cap_054_a_synthesis_comes_from_a_round_of_the_step(said):
    """A synthesis that no model round of the step produced does not pass; the row refuses an empty one (CAP-054)."""
    plan = hold_plan(llm_step("a"))
    step = step_of(plan, "a")
    PlanStep.objects.start(step.pk)
    if said is not None:
        StepMessage.objects.create(step=step, round=1, role="assistant", text=said)
    with pytest.raises(SynthesisQualityError):
        services.complete_step(step=step, result={}, synthesis="Done: step a.", events=Recorded())
    assert step_of(plan, "a").status == "running"
    with pytest.raises(IntegrityError, match="step_synthesis"):
        PlanStep.objects.filter(pk=step.pk).update(status="completed")


@pytest.mark.django_db(transaction=True)
def test_every_end_is_told_in_the_transaction_that_makes_it():
    plan = hold_plan(data_step("a", "t"), data_step("b", "t"))
    run = claim(plan)
    PlanStep.objects.filter(plan=plan, key="a").update(status="running")
    with unit(run) as opened:

        def closing():
            services.fail_step(step=step_of(plan, "a"), error="no", events=opened)
            return services.settle(plan_id=plan.pk, events=opened, slots=1).arrow

        opened.close_with(closing)
    plan.refresh_from_db()
    assert (plan.status, plan.error) == ("failed", "step a: no")
    assert [event["event"] for event in events_of(plan)] == ["plan_created", "plan_step", "plan_failed"]
    assert events_of(plan)[-1] == {"event": "plan_failed", "plan_id": plan.pk, "error": "no", "step": "a"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("limit", "says"),
    [({"deadline": "2020-01-01T00:00Z"}, "deadline"), ({"budget_tokens": 0}, "budget of 0 tokens")],
)
def test_a_plan_fails_past_its_limits(limit, says, scripted_llm):
    from tests.support.plans import agents_on, run_plan

    plan = hold_plan(llm_step("a"), llm_step("b"), **limit)
    run_plan(plan, agents_on(scripted_llm("One.", leftovers=True)))
    assert plan.status == "failed"
    assert says in plan.error
    assert events_of(plan)[-1]["event"] == "plan_failed"
