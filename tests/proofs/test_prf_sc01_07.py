"""PRF-SC01-07: whatever fails a plan, `plan_failed` is in the same transaction (CAP-100)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from llm.testing import ScriptedLLM
from plan import steering
from plan.models import ExecutionPlan
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.plans import agents_on, events_of, hold_plan, llm_step, run_plan
from tools.runs import MAX_ATTEMPTS, ClockTimestamp

SCRIPT = Path(__file__).parents[1] / "fixtures/llm_scripts/PRF-SC01-07/reject_key.json"
pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


def test_prf_sc01_07_a_model_that_refuses_us_fails_the_plan_aloud():
    plan = hold_plan(llm_step("look"), llm_step("advise"), correlation_id="prf-sc01-07")
    run_plan(plan, agents_on(ScriptedLLM.from_file(SCRIPT)))
    assert plan.status == "failed"
    assert events_of(plan)[-1]["event"] == "plan_failed"
    assert "llm.authentication" in events_of(plan)[-1]["error"]
    assert_agent_story(
        record_trace("prf-sc01-07", workflow="SC-01"),
        workflow="SC-01",
        beats={"plan_step": ["look:completed", "advise:failed"], "plan_failed": ["advise"], "error": ["plan:failed"]},
    )


def test_prf_sc01_07_a_broken_executor_fails_the_plan_aloud():
    class Broken:
        def __call__(self, *_args: object, **_options: object) -> object:
            raise ZeroDivisionError

    plan = hold_plan(llm_step("look"))
    run_plan(plan, Broken())
    assert (plan.status, events_of(plan)[-1]["event"]) == ("failed", "plan_failed")
    assert "ZeroDivisionError" in plan.error


def test_prf_sc01_07_workers_that_die_every_time_fail_the_plan_aloud():
    plan = hold_plan(llm_step("look"))
    for attempt in range(MAX_ATTEMPTS):
        assert ExecutionPlan.objects.claim(plan.pk, owner="dies", suspect=attempt >= 2)
        ExecutionPlan.objects.update(lease_until=ClockTimestamp() - timedelta(seconds=1))
    assert steering.fail_spent_plans() == 1
    assert events_of(plan)[-1]["event"] == "plan_failed"
