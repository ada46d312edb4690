"""The admin shows conversations, turns and messages, and what the model gets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from chat.models import Conversation
from chat.preview import preview_of
from chat.services import cancel_turn
from factory.agents import create_agent
from llm.errors import LLMPermissionError
from llm.testing import call, cut
from llm.types import LLMResponse
from loop.preview import NO_REQUEST
from prompt.types import Limits
from tests.loop.dialects import blocks_of


@pytest.fixture
def signed_in(chat):
    it = chat(call("no_such"), "Done.")
    it.user.is_staff = True
    it.user.save()
    it.say("Tell me <b>all</b>")
    browser = Client()
    browser.force_login(it.user)
    return it, browser


def test_the_preview_is_what_the_model_got(signed_in):
    it, _browser = signed_in
    turn = it.conversation.turns.get()
    parts = preview_of(turn)
    sent = it.llm.requests[-1]
    assert [part.text for part in parts[1:4]] == [block.text for block in sent.system]
    assert [part.cached for part in parts[1:4]] == [block.cache for block in sent.system]
    assert parts[4].text == sent.messages[0].content
    assert [part.cached for part in parts[4:]] == [message.cache for message in sent.messages]
    assert parts[0].title == f"tools ({len(sent.tools)})"


def test_the_preview_shows_the_forced_final_answers_note_and_what_a_hand_off_asked(chat):
    plan = call("create_plan", goal="Look", steps=[{"key": "a", "action": "Look"}])
    for answers, limits in (([call("no_such"), "So far."], Limits(iterations=1)), ([plan], Limits())):
        it = chat(*answers, limits=limits)
        it.agents = limited(it)
        turn = it.say("go")
        parts = preview_of(turn)
        assert [part.text for part in parts[4:]] == [text_of(m) for m in it.llm.requests[-1].messages]


@pytest.mark.parametrize("answers", [[LLMPermissionError()], [call("no_such"), cut("So f", LLMPermissionError())]])
def test_the_preview_of_a_turn_that_failed_is_the_request_that_failed(chat, answers):
    it = chat(*answers)
    turn = it.say("go")
    assert turn.status == "failed"
    assert [part.text for part in preview_of(turn)[4:]] == [text_of(m) for m in it.llm.requests[-1].messages]


def test_a_turn_that_ended_before_its_model_was_asked_has_no_request(chat, settings):
    settings.CAPSTAN_LOOP = {"window_tokens": 1_000}
    it = chat("never")
    for turn in (it.say("x" * 5_000), cancel_turn(turn_id=it.send("hi").pk)):
        assert preview_of(turn) == [NO_REQUEST]
    assert it.llm.requests == []


def limited(it):
    def agents(identity, *, mode="conversation", tier=None):
        agent = create_agent(identity, llm=it.llm, mode=mode, tier=tier)
        return replace(agent, identity=replace(agent.identity, limits=it.limits))

    return agents


def text_of(message):
    made = [f"→ {call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in message.tool_calls]
    return "\n".join([message.content, *made] if message.content else made)


def test_the_preview_of_a_turn_that_has_not_begun_says_what_is_still_to_come(chat):
    it = chat("later")
    assert preview_of(it.send("hi"))[-1].title == "layer 4"
    assert it.llm.requests == []


def test_the_preview_shows_replayed_blocks(chat):
    made = blocks_of("anthropic", "Hi.", [])
    it = chat(LLMResponse(content="Hi.", blocks=made), LLMResponse(content="Yes.", blocks=made))
    it.say("one")
    shown = [part.title for part in preview_of(it.say("two"))[4:]]
    assert shown == ["user", "assistant, as its model made it, thinking included", "user"]


def test_pages_of_the_admin(signed_in):
    it, browser = signed_in
    turn = it.conversation.turns.get()
    shown = browser.get(reverse("admin:capstan_chat_turn_change", args=[turn.pk]))
    assert shown.status_code == 200
    text = shown.content.decode()
    assert "What the model gets" in text
    assert "Tell me &lt;b&gt;all&lt;/b&gt;" in text
    assert "cached up to here" in text
    parts = preview_of(turn)
    for part in parts:
        assert f"{part.tokens} tokens" in text
    assert f"{sum(part.tokens for part in parts)} tokens" in text
    for name in ("conversation", "turn", "message"):
        assert browser.get(reverse(f"admin:capstan_chat_{name}_changelist")).status_code == 200
        assert browser.get(reverse(f"admin:capstan_chat_{name}_add")).status_code == 403


def test_a_conversation_shows_its_turns_and_board_and_offers_no_change(signed_in):
    it, browser = signed_in
    Conversation.objects.filter(pk=it.conversation.pk).update(board={"phase": "exploring <b>"})
    page = browser.get(reverse("admin:capstan_chat_conversation_change", args=[it.conversation.pk])).content.decode()
    turn = it.conversation.turns.get()
    assert "Tell me &lt;b&gt;all&lt;/b&gt;" in page
    assert "Done." in page
    assert "exploring &lt;b&gt;" in page
    assert reverse("admin:capstan_chat_turn_change", args=[turn.pk]) in page
    assert 'name="_save"' not in page
    assert "Delete?" not in page
