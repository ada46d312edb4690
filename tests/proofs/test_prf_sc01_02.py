"""PRF-SC01-02: after a 429 the plan waits without an owner, goes on, and runs no completed step again (CAP-061)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from llm.testing import ScriptedLLM
from observability.models import AgentInteraction
from plan.models import ExecutionPlan, PlanStep
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.plans import agents_on, events_of, hold_plan, llm_step, run_plan, statuses
from tools.models import ToolExecution
from tools.runs import ClockTimestamp
from worker.runner import Left

SCRIPT = Path(__file__).parents[1] / "fixtures/llm_scripts/PRF-SC01-02/reject_rate_limited.json"


@pytest.mark.agent_proof
@pytest.mark.django_db(transaction=True)
def test_prf_sc01_02_a_rate_limit_delays_and_repeats_nothing():
    llm = ScriptedLLM.from_file(SCRIPT)
    plan = hold_plan(llm_step("look"), llm_step("advise"), correlation_id="prf-sc01-02")
    agents = agents_on(llm)
    assert run_plan(plan, agents) == Left.WAITING
    assert (plan.status, plan.lease_until, plan.rate_limit_waits) == ("waiting_retry", None, 1)
    assert statuses(plan) == {"look": "completed", "advise": "waiting_retry"}
    step = PlanStep.objects.get(plan=plan, key="advise")
    assert step.not_before == plan.not_before

    due = ClockTimestamp() - timedelta(seconds=1)
    ExecutionPlan.objects.update(not_before=due)
    PlanStep.objects.filter(pk=step.pk).update(not_before=due)
    assert run_plan(plan, agents) == Left.ENDED
    assert plan.status == "completed"
    assert llm.remaining == 0
    assert [e["step"] for e in events_of(plan, "plan_step") if e["status"] == "completed"] == ["look", "advise"]
    assert ToolExecution.objects.filter(plan_id=plan.pk).count() == 1
    calls = AgentInteraction.objects.filter(plan_id=plan.pk).order_by("pk").values_list("error_code", "committed")
    assert list(calls) == [("", True), ("", True), ("llm.rate_limited", False), ("", True)]
    assert_agent_story(
        record_trace("prf-sc01-02", workflow="SC-01"),
        workflow="SC-01",
        beats={
            "entry": ["plan"],
            "config": ["planner", "scripted:execution"],
            "tool_called": ["catalog_overview"],
            "tool_result": ["catalog_overview:success=true"],
            "domain_read": ["catalog_overview"],
            "rate_limit": [],
            "plan_step": ["look:completed", "advise:waiting_retry", "advise:completed"],
            "exit": ["plan:completed"],
        },
    )
