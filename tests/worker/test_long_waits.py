"""Waits of hours and days are rows: no message lies in the broker meanwhile, and a step runs once (cases H/21)."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from llm.errors import RateLimitError
from plan import steering
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan
from tests.worker.test_approvals import found_workspace, waiting_plan
from tests.worker.test_dispatch import sent
from tools.models import Approval
from tools.runs import ClockTimestamp, database_now
from worker import recovery
from worker.runner import Left
from worker.steps import LONGEST_ASKED_S

pytestmark = pytest.mark.django_db(transaction=True)

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "fixtures/cases/21_far_future.json").read_text())["cases"]
}


def length(text: str) -> timedelta:
    """An ISO duration of days, hours and minutes."""
    days, hours, minutes = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?)?", text).groups(default="0")
    return timedelta(days=int(days), hours=int(hours), minutes=int(minutes))


def pass_by(plan: ExecutionPlan, time: timedelta) -> None:
    """So much time goes by for the plan and its steps."""
    ExecutionPlan.objects.filter(pk=plan.pk, not_before__isnull=False).update(not_before=ClockTimestamp() + time)
    PlanStep.objects.filter(plan=plan, not_before__isnull=False).update(not_before=ClockTimestamp() + time)


@pytest.mark.parametrize("case", [CASES[key] for key in "ace"], ids="ace")
def test_a_step_that_waits_is_run_once_and_in_time(redis, scripted_llm, case):
    wait = length(case["wait"])
    times = -(-wait // timedelta(seconds=LONGEST_ASKED_S))  # of more than a day the provider is asked again meanwhile
    refusals = [RateLimitError(retry_after_s=(wait - n * timedelta(days=1)).total_seconds()) for n in range(times)]
    llm = scripted_llm(*refusals, "Done.")
    plan, agents = hold_plan(llm_step("a")), agents_on(llm)
    for refusal in refusals:
        assert run_plan(plan, agents) == Left.WAITING
        asked = timedelta(seconds=min(refusal.retry_after_s, LONGEST_ASKED_S))
        assert timedelta(0) <= asked - (plan.not_before - database_now()) < timedelta(minutes=1)
        assert (recovery.recover_plans().sent, sent(redis)) == (0, [])
        pass_by(plan, timedelta(seconds=1))
        assert (recovery.recover_plans().sent, run_plan(plan, agents)) == (0, Left.NOT_FREE)
        pass_by(plan, -timedelta(milliseconds=1))
        assert recovery.recover_plans().sent == 1  # the next sweep, which comes within seconds
        assert sent(redis) == [plan.pk]
        redis.flushdb()
    assert run_plan(plan, agents) == Left.ENDED
    assert run_plan(plan, agents) == Left.NOT_FREE  # a second copy of the message
    assert (plan.status, len(llm.requests)) == ("completed", times + 1)


def test_an_approval_lapses_in_time_and_once(redis):
    """Case b."""
    plan = waiting_plan(data_step("found", "found_workspace", {"slug": "never"}))
    run_plan(plan, agents_on(None, found_workspace))
    redis.flushdb()
    lapses = Approval.objects.get().expires_at
    assert recovery.sweep(now=lapses - timedelta(seconds=1)).sent == 0
    assert sent(redis) == []
    recovery.sweep(now=lapses)
    recovery.sweep(now=lapses)
    assert (Approval.objects.get().status, sent(redis)) == ("expired", [plan.pk])


def test_back_off_grows_to_a_limit_and_needs_no_message(redis, scripted_llm):
    """Case f: no wait of ours grows past the time after which the broker would deliver a message again."""
    plan, waits = hold_plan(llm_step("a")), []
    agents = agents_on(scripted_llm(*[RateLimitError()] * 9))
    while run_plan(plan, agents) == Left.WAITING:
        waits.append(round((plan.not_before - database_now()).total_seconds()))
        assert sent(redis) == []
        pass_by(plan, -timedelta(milliseconds=1))
    assert waits == pytest.approx([5, 10, 20, 40, 80, 160, 300, 300], abs=2)
    assert (plan.status, PlanStep.objects.get(plan=plan).attempts) == ("failed", 8)


@pytest.mark.parametrize("status", ["waiting_retry", "pending"])
def test_a_cancel_during_the_wait_ends_it(redis, scripted_llm, status):
    plan = hold_plan(llm_step("a"))
    run_plan(plan, agents_on(scripted_llm(RateLimitError(retry_after_s=7200))))
    if status == "pending":  # its time has come, and nobody has taken it yet
        ExecutionPlan.objects.filter(pk=plan.pk).update(status=status)
    assert steering.cancel_plan(plan_id=plan.pk).ended
    pass_by(plan, -timedelta(seconds=1))
    assert (recovery.recover_plans().sent, sent(redis)) == (0, [])
    assert run_plan(plan, agents_on()) == Left.NOT_FREE
    assert plan.status == "cancelled"
