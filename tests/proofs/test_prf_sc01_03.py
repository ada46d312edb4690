"""PRF-SC01-03 (adverse): what cannot be read as a board leaves the old one standing (CAP-072)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from chat import services
from chat.models import Conversation, Message, Turn
from chat.runner import run_turn
from events.models import Event
from factory.agents import create_agent
from llm.testing import ScriptedLLM
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.runs import make_conversation, make_user, make_workspace

SCRIPT = Path(__file__).parents[1] / "fixtures/llm_scripts/PRF-SC01-03/reject_bad_board.json"
pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


def test_prf_sc01_03_bad_model_output_keeps_the_blackboard() -> None:
    user = make_user(is_superuser=True)
    conversation = make_conversation(user=user, workspace=make_workspace(user))
    llm = ScriptedLLM.from_file(SCRIPT)

    def say(text: str) -> Turn:
        turn = services.send_message(
            conversation_id=conversation.pk,
            author=user,
            text=text,
            respond_async=False,
            correlation_id="prf-sc01-03",
            now=timezone.now(),
        )
        return run_turn(turn.pk, agents=partial(create_agent, llm=llm), clock=timezone.now)

    def board() -> dict[str, Any]:
        return Conversation.objects.get(pk=conversation.pk).board

    assert (say("Hello").answer, board()) == ("I look first.", {"phase": "explore"})
    assert (say("And?").answer, board()) == ("Not in chat, then.", {"phase": "explore"})
    assert (say("So?").answer, board()) == ("Nothing new.", {"phase": "explore"})
    told = [request.messages for request in llm.requests]
    layers = [json.loads(_layer_4(messages)) for messages in (told[0], told[1], told[3])]
    assert [layer.get("board") for layer in layers] == [None, {"phase": "explore"}, {"phase": "explore"}]
    assert not Message.objects.filter(text__contains="<board>").exists()
    assert not Event.objects.filter(payload__text__contains="<board>").exists()
    assert_agent_story(
        record_trace("prf-sc01-03", workflow="SC-01"),
        workflow="SC-01",
        beats={
            "entry": ["turn"],
            "blackboard_set": ["board"],
            "blackboard_retain": ["board"],
            "exit": ["turn:completed"],
        },
    )


def _layer_4(messages: Any) -> str:
    asked = [message.content for message in messages if message.role == "user"][-1]
    return str(asked.split("<context>\n")[1].split("\n</context>")[0])
