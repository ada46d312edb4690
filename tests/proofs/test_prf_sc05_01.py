"""PRF-SC05-01 (adverse): a destructive tool is blocked until a person approves it (CAP-033, CAP-036)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from chat import services
from chat.models import Turn
from chat.runner import run_turn
from events.models import Event
from factory.agents import create_agent
from llm.testing import ScriptedLLM
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.runs import make_conversation, make_user, make_workspace
from tools.executor import ToolExecutor
from tools.models import Approval, ToolExecution
from tools.registry import Registry, tool
from tools.services import decide
from tools.types import ToolContext
from workspaces.models import User, Workspace

SCRIPTS = Path(__file__).parents[1] / "fixtures/llm_scripts/PRF-SC05-01"
pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]

governed = Registry()


@tool(
    effect="write",
    permission="capstan_workspaces.delete_workspace",
    destructive=True,
    summary="Delete the workspace {slug}",
    registry=governed,
)
def delete_workspace(slug: str, user_id: int, context: ToolContext) -> str:
    """Delete a workspace for good."""
    assert user_id == context.user.pk
    Workspace.objects.get(slug=slug).delete()
    return f"deleted by {user_id}"


def agents(llm: ScriptedLLM) -> Any:
    """The product's agent, on the governed tool alone."""

    def make(identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
        agent = create_agent(identity, llm=llm, mode=mode, tier=tier)
        who = replace(agent.identity, allowed_tools=governed.names())
        return replace(agent, identity=who, executor=ToolExecutor(governed, who, mode=mode))

    return make


def asked(script: str, correlation_id: str) -> tuple[ScriptedLLM, User, Turn]:
    user = make_user(is_superuser=True)
    Workspace.objects.create(slug="old", name="Old")
    conversation = make_conversation(user=user, workspace=make_workspace(user))
    turn = services.send_message(
        conversation_id=conversation.pk,
        author=user,
        text="Delete the old workspace. It is approved.",
        respond_async=False,
        correlation_id=correlation_id,
        now=timezone.now(),
    )
    llm = ScriptedLLM.from_file(SCRIPTS / script)
    return llm, user, run_turn(turn.pk, agents=agents(llm), clock=timezone.now)


def test_prf_sc05_01_nothing_is_deleted_before_a_person_approves() -> None:
    llm, user, turn = asked("happy.json", "prf-sc05-01")
    assert (turn.status, len(llm.requests)) == ("waiting_approval", 1)
    assert Workspace.objects.filter(slug="old").exists()
    assert ToolExecution.objects.count() == 0
    approval = Approval.objects.get()
    assert (approval.arguments, approval.summary) == ({"slug": "old"}, "Delete the workspace old")
    assert list(Event.objects.filter(name="approval_requested").values_list("payload__approval_id", flat=True)) == [
        approval.pk
    ]

    decide(approval_id=approval.pk, user=user, decision="approve", now=timezone.now(), tools=governed)
    turn = run_turn(turn.pk, agents=agents(llm), clock=timezone.now)
    assert (turn.status, turn.answer) == ("completed", "The workspace is deleted.")
    assert not Workspace.objects.filter(slug="old").exists()
    assert f"deleted by {user.pk}" in str(llm.requests[1].messages[-1]), "the server says who it was, not the model"
    assert_agent_story(
        record_trace("prf-sc05-01", workflow="SC-05"),
        workflow="SC-05",
        beats={
            "entry": ["turn"],
            "tool_called": ["delete_workspace"],
            "tool_result": ["delete_workspace:success=true"],
            "domain_write": ["delete_workspace"],
            "exit": ["turn:completed"],
        },
    )


def test_prf_sc05_01_a_rejected_tool_stays_blocked_for_the_turn() -> None:
    llm, user, turn = asked("reject_unapproved.json", "prf-sc05-01-no")
    approval = Approval.objects.get()
    decide(approval_id=approval.pk, user=user, decision="reject", note="keep it", now=timezone.now(), tools=governed)
    turn = run_turn(turn.pk, agents=agents(llm), clock=timezone.now)
    assert (turn.status, turn.answer) == ("completed", "I may not delete it.")
    assert Workspace.objects.filter(slug="old").exists()
    assert "keep it" in str(llm.requests[1].messages[-1])
    assert "stays refused" in str(llm.requests[2].messages[-1])
    assert [schema["name"] for schema in llm.requests[2].tools] == ["delete_workspace"], "its schema stays"
    assert_agent_story(
        record_trace("prf-sc05-01-no", workflow="SC-05"),
        workflow="SC-05",
        beats={"tool_blocked": ["delete_workspace"], "exit": ["turn:completed"]},
    )
    assert list(ToolExecution.objects.values_list("status", flat=True)) == ["blocked", "blocked"]
