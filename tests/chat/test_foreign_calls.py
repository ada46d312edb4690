"""Calls as no model should make them, and an author who leaves: the turn goes on, or says why not."""

from __future__ import annotations

import pytest
from django.utils import timezone

from chat.models import Message, Turn
from llm.errors import RateLimitError
from llm.testing import call
from llm.types import LLMResponse, ToolCall
from tools.registry import Registry, tool
from tools.types import ToolContext
from workspaces.models import Membership, User

LONG_ID = "call_" + "i" * 300


@pytest.fixture
def tools():
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look(at: str = "") -> str:
        """Look."""
        return "seen"

    @tool(effect="write", permission="capstan_workspaces.add_workspace", registry=registry)
    def leave(context: ToolContext, how: str) -> str:
        """Take the author's rights away."""
        if how == "deactivated":
            User.objects.filter(pk=context.user.pk).update(is_active=False)
        else:
            Membership.objects.filter(user=context.user.pk).delete()
        return "gone"

    return registry


def run_again(it, turn):
    Turn.objects.update(not_before=timezone.now())
    return it.run(turn)


def test_a_resumed_turn_may_have_made_a_call_larger_than_the_window(chat, tools):
    it = chat(call("look", at="x" * 400_000), RateLimitError(retry_after_s=40), "In the end.", tools=tools)
    turn = it.say("go")
    assert turn.status == "queued"
    done = run_again(it, turn)
    assert (done.status, done.answer, done.notice) == ("completed", "In the end.", "")


def test_a_question_larger_than_the_window_is_refused(chat, settings):
    settings.CAPSTAN_LOOP = {"window_tokens": 1_000}
    turn = chat("never").say("x" * 10_000)
    assert (turn.status, turn.stop_reason) == ("failed", "chat.question_too_large")


@pytest.mark.parametrize("name", ["look", "n" * 300])
def test_a_call_with_a_long_id_or_name_is_answered_under_its_own_id(chat, tools, name):
    made = ToolCall(id=LONG_ID, name=name, arguments={})
    answer = LLMResponse(content="", tool_calls=[made], stop_reason="tool_use")
    it = chat(answer, RateLimitError(retry_after_s=40), "done", tools=tools)
    turn = it.say("go")
    assert run_again(it, turn).status == "completed"
    for request in it.llm.requests[1:]:  # from memory, and from the rows
        said, result = request.messages[-2:]
        assert (said.tool_calls[0]["id"], result.tool_call_id) == (LONG_ID, LONG_ID)
        assert ("seen" if name == "look" else "unknown tool") in result.content
    row = Message.objects.get(turn=turn, role="tool")
    assert (len(row.tool_call_id), row.tool_name) == (128, name[:128])


@pytest.mark.parametrize("how", ["deactivated", "removed"])
def test_a_turn_whose_author_leaves_ends_and_says_why_without_a_further_model_call(chat, tools, how):
    it = chat(call("leave", how=how), "never asked for", tools=tools)
    turn = it.say("go")
    assert (turn.status, turn.stop_reason) == ("failed", "chat.no_member")
    assert "no active member" in turn.notice
    assert (len(it.llm.requests), it.llm.remaining) == (1, 1)


def test_a_turn_whose_author_left_before_it_began_asks_no_model(chat):
    it = chat("never asked for")
    turn = it.send("go")
    Membership.objects.all().delete()
    assert it.run(turn).stop_reason == "chat.no_member"
    assert not it.llm.requests
