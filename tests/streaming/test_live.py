"""Open rounds: what a reader who comes late gets, and what a dead Redis costs the writer."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest

from events.models import channel_of
from streaming.connection import client
from streaming.live import READ, TEXT_CAP_BYTES, drain, key_of
from streaming.signals import LiveRound, wake
from tests.streaming.servers import Valkey
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("valkey")


def kept(stream_id: uuid.UUID) -> dict[str, tuple[dict[str, str], str]]:
    return {
        run: (dict(zip(meta[::2], meta[1::2], strict=True)), text)
        for run, meta, text in client().eval(READ, 1, key_of(stream_id))
    }


class Listener:
    def __init__(self, stream_id: uuid.UUID) -> None:
        self._pubsub = client().pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(channel_of(stream_id))
        self._pubsub.get_message(timeout=2)  # the confirmation

    def take(self) -> list[dict[str, Any]]:
        found = []
        while (message := self._pubsub.get_message(timeout=0.3)) is not None:
            found.append(json.loads(message["data"]))
        self._pubsub.close()
        return found


def test_text_is_kept_from_its_first_character_and_offsets_count_characters() -> None:
    stream_id = uuid.uuid4()
    listener = Listener(stream_id)
    live = LiveRound(stream_id, run="turn:1", round=2, fence=3)
    for piece in ("Grüße ", "🚀", "東京", "\x00", "!"):
        live.append(piece)
        assert drain()
    tokens = listener.take()
    assert kept(stream_id)["turn:1"][1] == "Grüße 🚀東京\x00!"
    assert [(t["offset"], t["text"]) for t in tokens] == [(0, "Grüße "), (6, "🚀"), (7, "東京"), (9, "\x00"), (10, "!")]
    assert {(t["event"], t["run"], t["round"], t["fence"]) for t in tokens} == {("token", "turn:1", 2, 3)}


def test_deltas_that_come_at_once_go_in_one_signal() -> None:
    stream_id = uuid.uuid4()
    listener = Listener(stream_id)
    live = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    for number in range(500):
        live.append(f"{number} ")
    assert drain()
    tokens = listener.take()
    assert "".join(t["text"] for t in tokens) == "".join(f"{n} " for n in range(500))
    assert len(tokens) < 100


def test_a_replaced_owner_is_silent() -> None:
    stream_id = uuid.uuid4()
    old = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    old.append("old text")
    assert drain()
    new = LiveRound(stream_id, run="turn:1", round=1, fence=2)
    new.restart()
    assert drain()
    listener = Listener(stream_id)
    old.append(" more")
    new.append("new")
    assert drain()
    assert [(t["fence"], t["text"]) for t in listener.take()] == [(2, "new")]
    assert kept(stream_id)["turn:1"][1] == "new"


def test_a_restart_withdraws_the_text_of_the_same_round() -> None:
    stream_id = uuid.uuid4()
    listener = Listener(stream_id)
    live = LiveRound(stream_id, run="step:5", round=1, fence=1)
    live.append("half an ans")
    assert drain()
    live.restart()
    live.append("whole")
    assert drain()
    assert [s["event"] for s in listener.take()] == ["token", "round_restarted", "token"]
    assert kept(stream_id)["step:5"][1] == "whole"


def test_a_closed_round_leaves_no_text_and_takes_none() -> None:
    stream_id = uuid.uuid4()
    live = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    live.append("text")
    live.tool(1, "search", "Searching")
    assert drain()
    assert json.loads(kept(stream_id)["turn:1"][0]["tool:1"])["label"] == "Searching"
    live.close()
    assert drain()
    late = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    late.append("late")
    assert drain()
    assert kept(stream_id)["turn:1"][1] == ""
    following = LiveRound(stream_id, run="turn:1", round=2, fence=1)
    following.append("next round")
    assert drain()
    assert kept(stream_id)["turn:1"][1] == "next round"


def test_the_kept_text_is_capped_and_expires() -> None:
    stream_id = uuid.uuid4()
    live = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    for _ in range(30):
        live.append("x" * 10_000)
        assert drain()
    assert len(kept(stream_id)["turn:1"][1]) <= TEXT_CAP_BYTES
    assert int(kept(stream_id)["turn:1"][0]["chars"]) == 300_000
    for key in client().keys("agent:live:*"):
        assert 0 < client().ttl(key) <= 900


def test_text_is_whole_again_after_redis_lost_everything() -> None:
    stream_id = uuid.uuid4()
    live = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    live.append("before ")
    live.tool(1, "search", "Searching")
    assert drain()
    client().flushall()
    live.append("after")
    assert drain()
    meta, text = kept(stream_id)["turn:1"]
    assert text == "before after"
    assert "tool:1" in meta


def test_a_dead_redis_costs_the_writer_nothing_and_text_arrives_when_it_is_back(valkey: Valkey) -> None:
    stream_id = uuid.uuid4()
    live = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    live.append("a")
    assert drain()
    valkey.kill()
    started = time.monotonic()
    for _ in range(10_000):
        live.append("b")
    for _ in range(200):
        wake(stream_id)
    assert time.monotonic() - started < 3
    valkey.start()
    live.append("c")
    wait_until(lambda: kept(stream_id).get("turn:1", ({}, ""))[1] == "a" + "b" * 10_000 + "c", what="the text is back")


def test_a_closed_round_is_forgotten_when_redis_is_dead(valkey: Valkey) -> None:
    valkey.kill()
    live = LiveRound(uuid.uuid4(), run="turn:1", round=1, fence=1)
    live.append("never sent")
    live.close()
    assert drain(5)


def test_a_wait_for_the_provider_is_told_and_kept_until_text_comes() -> None:
    stream_id = uuid.uuid4()
    listener = Listener(stream_id)
    live = LiveRound(stream_id, run="turn:1", round=2, fence=3)
    live.waiting("rate limited", 1, 5.0)
    assert drain()
    assert {"wait", "wait_until"} <= kept(stream_id)["turn:1"][0].keys()
    [told] = listener.take()
    assert {name: told[name] for name in ("event", "run", "round", "fence", "message", "attempt")} == {
        "event": "rate_limit", "run": "turn:1", "round": 2, "fence": 3, "message": "rate limited", "attempt": 1,
    }  # fmt: skip
    assert 4 < told["delay_s"] <= 5
    live.append("at last")
    assert drain()
    meta, text = kept(stream_id)["turn:1"]
    assert ("wait" in meta, text) == (False, "at last")


def test_a_wait_is_withdrawn_with_its_round() -> None:
    stream_id = uuid.uuid4()
    live = LiveRound(stream_id, run="turn:1", round=1, fence=1)
    live.waiting("rate limited", 1, 5.0)
    assert drain()
    live.restart()
    assert drain()
    assert "wait" not in kept(stream_id)["turn:1"][0]
