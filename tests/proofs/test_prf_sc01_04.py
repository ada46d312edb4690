"""PRF-SC01-04 (adverse): conversation mode refuses read tools, whatever the model asks for (CAP-039)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from django.utils import timezone

from chat import services
from chat.runner import run_turn
from factory.agents import create_agent
from llm.testing import ScriptedLLM
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.runs import make_conversation, make_user, make_workspace
from tools.models import ToolExecution

SCRIPT = Path(__file__).parents[1] / "fixtures/llm_scripts/PRF-SC01-04/reject_read_in_chat.json"
pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]

REFUSED = "tool 'get_element' not exposed in conversation mode"


def test_prf_sc01_04_a_read_tool_is_refused_in_conversation_mode() -> None:
    user = make_user(is_superuser=True)
    conversation = make_conversation(user=user, workspace=make_workspace(user))
    llm = ScriptedLLM.from_file(SCRIPT)
    turn = services.send_message(
        conversation_id=conversation.pk,
        author=user,
        text="What is in module:auth?",
        respond_async=False,
        correlation_id="prf-sc01-04",
        now=timezone.now(),
    )
    turn = run_turn(turn.pk, agents=partial(create_agent, llm=llm), clock=timezone.now)
    assert turn.status == "completed", "the refusal ends nothing"
    offered = {schema["name"] for schema in llm.requests[0].tools}
    assert "get_element" not in offered
    assert "create_plan" in offered
    assert REFUSED in llm.requests[1].messages[-1].content, "the model reads why"
    row = ToolExecution.objects.get()
    assert (row.tool_name, row.status, row.error, row.mode) == ("get_element", "blocked", REFUSED, "conversation")
    assert_agent_story(
        record_trace("prf-sc01-04", workflow="SC-01"),
        workflow="SC-01",
        beats={
            "entry": ["turn"],
            "tools_offered": ["create_plan"],
            "tool_blocked": [f"get_element:{REFUSED}"],
            "exit": ["turn:completed"],
        },
    )
