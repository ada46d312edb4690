"""A new owner withdraws what an earlier one may have shown, and only that (design § 7)."""

from __future__ import annotations

import json

from chat.models import Turn
from events.models import Event, channel_of
from llm.errors import RateLimitError
from llm.retry import RetryingLLM, RetryPolicy
from llm.testing import ScriptedLLM, call, say
from tools.registry import Registry, tool


def test_only_the_first_round_after_a_change_of_owners_is_withdrawn(chat, redis):
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look() -> str:
        """Look."""
        return "seen"

    it = chat(call("look"), call("look"), say("The end."), tools=registry)
    turn = it.send("go")
    Turn.objects.filter(pk=turn.pk).update(fence=1)  # somebody had it before
    told = redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe(channel_of(turn.stream_id))
    told.get_message(timeout=5)
    assert it.run(turn).answer == "The end."
    live = []
    while (message := told.get_message(timeout=0.5)) is not None:
        if message["data"]:
            live.append(json.loads(message["data"]))
    told.close()
    assert "".join(one["text"] for one in live if one["event"] == "token") == "The end."
    assert [one["round"] for one in live if one["event"] == "round_restarted"] == [1]


def test_a_wait_inside_the_model_call_is_said_on_the_stream(chat, redis):
    it = chat("unused")
    it.llm = RetryingLLM(ScriptedLLM([RateLimitError(retry_after_s=0.2), say("At last.")]), RetryPolicy())
    turn = it.send("go")
    told = redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe(channel_of(turn.stream_id))
    told.get_message(timeout=5)
    assert it.run(turn).answer == "At last."
    live = []
    while (message := told.get_message(timeout=0.5)) is not None:
        if message["data"]:
            live.append(json.loads(message["data"]))
    told.close()
    assert [one["event"] for one in live if one["event"] != "rows"] == ["rate_limit", "token"]
    wait = live[[one["event"] for one in live].index("rate_limit")]
    assert (wait["run"], wait["round"], wait["attempt"]) == (f"turn:{turn.pk}", 1, 1)
    assert 0 < wait["delay_s"] < 2
    assert not Event.objects.filter(stream=turn.stream_id, name="rate_limit").exists()
