"""PRF-SC01-06: a step executor that makes no model round fails the synthesis gate (CAP-054)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from factory.identities import identity
from llm.testing import ScriptedLLM
from loop.ports import LoopOutcome
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.plans import agents_on, hold_plan, llm_step, run_plan, statuses
from worker import runner

SCRIPT = Path(__file__).parents[1] / "fixtures/llm_scripts/PRF-SC01-06/reject_empty.json"
pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


@dataclass
class MechanicalAgent:
    """Echoes the step's action as its synthesis, as a dumb action-string script would (Pattern 4's anti-pattern)."""

    identity: Any

    def run_step(self, *, transcript: Any, **_options: Any) -> LoopOutcome:
        with transcript.unit() as unit:
            transcript.finish(unit, text=f"Done: {transcript.step.action}", stop_reason="end_turn")
        return LoopOutcome(status="ended")


def test_prf_sc01_06_a_mechanical_executor_cannot_pass():
    plan = hold_plan(llm_step("look"), llm_step("advise"), correlation_id="prf-sc01-06")
    mechanical = MechanicalAgent(identity("planner"))
    runner.execute_plan(plan_id=plan.pk, agents=lambda *_a, **_k: mechanical, clock=timezone.now)
    plan.refresh_from_db()
    assert (plan.status, statuses(plan)) == ("failed", {"look": "failed", "advise": "skipped"})
    assert "plan.synthesis_quality" in plan.error
    assert_agent_story(
        record_trace("prf-sc01-06", workflow="SC-01"),
        workflow="SC-01",
        beats={"plan_step": ["look:failed"], "plan_failed": ["look"], "error": ["plan:failed"]},
    )


def test_prf_sc01_06_an_empty_answer_cannot_pass_either():
    plan = hold_plan(llm_step("look"), llm_step("advise"))
    run_plan(plan, agents_on(ScriptedLLM.from_file(SCRIPT)))
    assert (plan.status, statuses(plan)) == ("failed", {"look": "completed", "advise": "failed"})
    assert "plan.synthesis_quality" in plan.error
