"""The shared case of a history, stored as one conversation and built for every window and every budget (CAP-041)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from chat.models import Conversation, Message, Turn
from chat.transcript import ChatTranscript
from factory.identities import identity
from loop.history import estimate_tokens
from tests.loop.dialects import broken_rules
from tests.support.runs import claim, make_conversation, make_turn

CASE = Path(__file__).parents[1] / "fixtures" / "cases" / "12_history_window.json"
pytestmark = pytest.mark.django_db(transaction=True)


def stored(raws: list[dict[str, Any]]) -> Turn:
    """The conversation's rows; its last turn waits for its answer."""
    conversation = make_conversation()
    turn: Turn | None = None
    number = position = 0
    for raw in raws:
        if raw["role"] == "user":
            turn, number = make_turn(conversation, after=_end(turn)), 0
        assert turn is not None
        number, position = (number + 1, 0) if raw["role"] == "assistant" else (number, position + 1)
        names = {call["id"]: call["tool"] for each in raws for call in each.get("calls", [])}
        made = [{"id": c["id"], "name": c["tool"], "arguments": c["args"]} for c in raw.get("calls", [])]
        row = Message.objects.create(
            conversation=conversation,
            turn=turn,
            role=raw["role"],
            round=number,
            position=position if raw["role"] == "tool" else 0,
            text=raw.get("text", raw.get("output", "")),
            tool_calls=made,
            tool_call_id=raw.get("call_id", ""),
            tool_name=names.get(raw.get("call_id", ""), ""),
        )
        if raw["role"] == "user":
            Turn.objects.filter(pk=turn.pk).update(question=row)
    assert turn is not None
    Conversation.objects.filter(pk=conversation.pk).update(active_turn=turn)
    return Turn.objects.select_related("workspace", "user", "conversation", "question").get(pk=turn.pk)


def _end(turn: Turn | None) -> Turn | None:
    if turn is not None:
        Turn.objects.filter(pk=turn.pk).update(status="completed", ended_at=timezone.now())
    return turn


def test_cap_041_case_12_as_rows_is_valid_at_every_window_and_budget(settings: Any) -> None:
    case = json.loads(CASE.read_text())
    turn = stored(case["turns"])
    run = claim(turn)
    who = identity("planner")
    settings.CAPSTAN_LOOP = {}
    whole = ChatTranscript(run=run, turn=turn, identity=who).messages()
    assert [message.role for message in whole] == [raw["role"] for raw in case["turns"]]
    every = sum(estimate_tokens(message) for message in whole)
    seen = set()
    for turns in range(1, 5):
        for tokens in range(0, every + 10, 3):
            settings.CAPSTAN_LOOP = {"window_turns": turns, "window_tokens": tokens, "result_chars": 5}
            sent = ChatTranscript(run=run, turn=turn, identity=who).messages()
            assert broken_rules(sent) == {}, (turns, tokens)
            assert sent[-1].content == "When will it come?"
            called = [call["id"] for message in sent for call in message.tool_calls]
            assert called == [message.tool_call_id for message in sent if message.role == "tool"]
            seen.add(len(sent))
    assert len(seen) == 4, "each budget that drops one more turn was met"
