"""PRF-SC01-01: a message becomes a plan, the plan completes (CAP-040, CAP-044, CAP-050, CAP-060)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from django.utils import timezone

from chat import services
from chat.runner import run_turn
from factory.agents import create_agent
from llm.testing import ScriptedLLM
from observability.models import AgentInteraction
from plan.models import ExecutionPlan, PlanStep
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.runs import make_conversation, make_user, make_workspace
from worker.runner import Left, execute_plan

SCRIPT = Path(__file__).parent.parent / "fixtures" / "llm_scripts" / "PRF-SC01-01" / "happy.json"

pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


def test_a_message_becomes_a_finished_plan() -> None:
    user = make_user(is_superuser=True)
    conversation = make_conversation(user=user, workspace=make_workspace(user))
    llm = ScriptedLLM.from_file(SCRIPT)
    agents = partial(create_agent, llm=llm)
    turn = services.send_message(
        conversation_id=conversation.pk,
        author=user,
        text="Analyse the auth module and propose a refactor plan",
        respond_async=False,
        correlation_id="prf-sc01-01",
        now=timezone.now(),
    )
    turn = run_turn(turn.pk, agents=agents, clock=timezone.now)
    assert (turn.status, turn.stop_reason) == ("completed", "plan_created")
    plan = ExecutionPlan.objects.get(pk=turn.plan_id)
    assert f"plan #{plan.pk}" in turn.answer
    assert plan.status == "pending", "the turn hands over, and runs no step itself"

    assert execute_plan(plan_id=plan.pk, agents=agents, clock=timezone.now) == Left.ENDED
    assert list(PlanStep.objects.filter(plan=plan).values_list("key", "status", "llm_synthesis")) == [
        ("survey", "completed", "The auth module has three parts."),
        ("propose", "completed", "Split it by provider, tests first."),
    ]
    assert_agent_story(
        record_trace("prf-sc01-01", workflow="SC-01"),
        workflow="SC-01",
        beats={
            "entry": ["turn"],
            "config": ["planner", "scripted:execution"],
            "tools_offered": ["create_plan"],
            "tool_called": ["catalog_overview", "create_plan", "search_elements"],
            "tool_result": ["create_plan:success=true"],
            "domain_read": ["search_elements"],
            "domain_write": ["create_plan"],
            "plan_created": [str(plan.pk)],
            "plan_step": ["survey:completed", "propose:completed"],
            "exit": ["turn:completed", "plan:completed"],
        },
    )
    assert len(llm.requests) == 5
    owners = AgentInteraction.objects.filter(correlation_id="prf-sc01-01").values_list("owner_kind", flat=True)
    assert sorted(owners) == ["step", "step", "step", "turn", "turn"]
    assert "The auth module has three parts." in str(llm.requests[-1]), "a later step reads the earlier synthesis"
