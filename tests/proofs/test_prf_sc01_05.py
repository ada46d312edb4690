"""PRF-SC01-05: a mutation invalidates the snapshot, and the next chat is told a new one (CAP-038)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from catalog.models import Element, Repository
from chat import services
from chat.runner import run_turn
from factory.agents import create_agent
from llm.testing import ScriptedLLM
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.runs import make_conversation, make_user, make_workspace

SCRIPT = Path(__file__).parents[1] / "fixtures/llm_scripts/PRF-SC01-05/happy.json"
pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


def test_prf_sc01_05_a_mutation_invalidates_the_snapshot_and_the_next_chat_rebuilds_it() -> None:
    user = make_user(is_superuser=True)
    workspace = make_workspace(user)
    conversation = make_conversation(user=user, workspace=workspace)
    repository = Repository.objects.create(workspace=workspace, label="shop")
    Element.objects.create(workspace=workspace, repository=repository, key="shop.auth", kind="module", name="auth")
    llm = ScriptedLLM.from_file(SCRIPT)

    def say(text: str) -> None:
        turn = services.send_message(
            conversation_id=conversation.pk,
            author=user,
            text=text,
            respond_async=False,
            correlation_id="prf-sc01-05",
            now=timezone.now(),
        )
        assert run_turn(turn.pk, agents=partial(create_agent, llm=llm), clock=timezone.now).status == "completed"

    say("Note that auth should be split")
    say("What do you know?")
    before, after = _layer_4(llm, 0), _layer_4(llm, 2)
    assert after["snapshot_version"] > before["snapshot_version"]
    assert "Split it." not in json.dumps(before["snapshot"])
    assert "Split it." in json.dumps(after["snapshot"])
    assert_agent_story(
        record_trace("prf-sc01-05", workflow="SC-01"),
        workflow="SC-01",
        beats={
            "entry": ["turn"],
            "tool_called": ["annotate_element"],
            "tool_result": ["annotate_element:success=true"],
            "domain_write": ["annotate_element"],
            "exit": ["turn:completed"],
        },
    )


def _layer_4(llm: ScriptedLLM, number: int) -> dict[str, Any]:
    asked = llm.requests[number].messages[-1].content
    layer: dict[str, Any] = json.loads(asked.split("<context>\n")[1].split("\n</context>")[0])
    return layer
