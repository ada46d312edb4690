"""Retry and the shared pause (CAP-005, CAP-006)."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import redis as redis_client
from hypothesis import given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from llm.adapters.wire import retry_after_s
from llm.errors import (
    LLMBadRequest,
    LLMCancelled,
    LLMError,
    LLMOverloaded,
    LLMTimeout,
    QuotaExhausted,
    RateLimitError,
    StreamCut,
)
from llm.limiter import LocalLimiter, SharedLimiter
from llm.ports import BaseLLM, CancelToken
from llm.retry import RetryingLLM, RetryPolicy, sleep, wait_for
from llm.testing import ScriptedLLM, cut, say
from llm.testing.http import HTTPLoopback
from llm.types import End, LLMMessage, ModelRequest, RateLimited, TextDelta, Withdrawn
from tests.llm.samples import ASK, CASES, adapter, payload, sample

ASLEEP = RetryPolicy(max_sleep_s=None)


class Waits(list):
    """Takes the place of sleeping: keeps the seconds, and lets the clock jump."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0

    def __call__(self, seconds, cancel):
        self.append(seconds)
        self.now += seconds

    def clock(self):
        return self.now


def retrying(inner, policy=ASLEEP, limiter=None, **options):
    waits = Waits()
    limiter = limiter or LocalLimiter(clock=waits.clock)
    return RetryingLLM(inner, policy, limiter, pause=waits, clock=waits.clock, **options), waits


def ask(text="q", **fields):
    return ModelRequest(messages=(LLMMessage("user", text),), **fields)


def test_cap_005_retries_on_rate_limit():
    llm, waits = retrying(ScriptedLLM([RateLimitError(retry_after_s=7), RateLimitError(), "done"]), draw=lambda: 0.5)
    assert isinstance(llm, BaseLLM)
    assert llm.call(ask()).content == "done"
    assert waits == [7.875, 30.0]  # what was asked for and a little; half of 30 · 2


def test_at_most_five_attempts_then_the_last_error_as_it_was():
    last = RateLimitError(retry_after_s=1)
    inner = ScriptedLLM([RateLimitError(retry_after_s=1)] * 4 + [last, "never"])
    llm, waits = retrying(inner)
    with pytest.raises(RateLimitError) as caught:
        llm.call(ask())
    assert caught.value is last
    assert (len(inner.requests), len(waits)) == (5, 4)


@pytest.mark.parametrize("error", [QuotaExhausted(), LLMBadRequest()])
def test_what_waiting_does_not_help_is_not_tried_again(error):
    inner = ScriptedLLM([error, "never"])
    llm, waits = retrying(inner)
    with pytest.raises(LLMError) as caught:
        llm.call(ask())
    assert caught.value is error
    assert (len(inner.requests), waits) == (1, [])


def test_cap_006_callback_fires_before_sleep():
    told, events, order = [], [], []
    waits = Waits()
    llm = RetryingLLM(
        ScriptedLLM([RateLimitError(retry_after_s=4), "done"]),
        ASLEEP,
        LocalLimiter(clock=waits.clock),
        on_wait=lambda *facts: (told.append(facts), order.append("told")),
        before_sleep=lambda: order.append("released"),
        pause=lambda seconds, cancel: (order.append("slept"), waits(seconds, cancel)),
        clock=waits.clock,
    )
    llm.call(ask(), on_event=events.append)
    assert order == ["told", "released", "slept"]
    message, attempt, delay = told[0]
    assert "rate_limited" in message
    assert (attempt, 4 <= delay <= 5) == (1, True)
    assert [e for e in events if isinstance(e, RateLimited)] == [RateLimited(message, attempt, delay)]


def test_a_wait_too_long_to_sleep_is_raised_with_its_length():
    inner = ScriptedLLM([RateLimitError(retry_after_s=86_400), "never"])
    llm, waits = retrying(inner, RetryPolicy())
    with pytest.raises(RateLimitError) as caught:
        llm.call(ask())
    assert caught.value.retry_after_s >= 86_400
    assert (waits, len(inner.requests)) == ([], 1)
    with pytest.raises(RateLimitError) as again:  # and the next call does not even go out, for a minute
        llm.call(ask())
    assert 50 < again.value.retry_after_s <= 61
    assert len(inner.requests) == 1


def test_another_failure_that_waits_too_long_is_put_off_as_well():
    error = LLMOverloaded(status=529)
    error.retry_after_s = 30.0
    llm, _waits = retrying(ScriptedLLM([error]), RetryPolicy())
    with pytest.raises(RateLimitError) as caught:
        llm.call(ask())
    assert caught.value.retry_after_s >= 30
    assert caught.value.__cause__ is error


def test_text_of_a_failed_attempt_is_withdrawn():
    llm, _waits = retrying(ScriptedLLM([cut("half an", StreamCut()), "whole"]))
    events = []
    response = llm.call(ask(), on_event=events.append)
    kinds = [type(event) for event in events]
    assert kinds.index(Withdrawn) == kinds.index(RateLimited) - 1
    after = "".join(e.text for e in events[kinds.index(RateLimited) :] if isinstance(e, TextDelta))
    assert (after, response.content) == ("whole", "whole")
    assert isinstance(events[-1], End)


def test_nothing_is_withdrawn_when_nothing_was_said():
    llm, _waits = retrying(ScriptedLLM([StreamCut(), "whole"]))
    events = []
    llm.call(ask(), on_event=events.append)
    assert Withdrawn not in [type(event) for event in events]


def test_a_stream_is_tried_again_only_while_nothing_was_handed_out():
    llm, _waits = retrying(ScriptedLLM([RateLimitError(), say("a b"), cut("half", StreamCut()), "never"]))
    assert list(llm.stream([LLMMessage("user", "q")])) == ["a ", "b"]
    pieces = []
    with pytest.raises(StreamCut):
        for piece in llm.stream([LLMMessage("user", "q")]):
            pieces.append(piece)  # noqa: PERF402  what came before the failure counts
    assert pieces == ["half"]


def test_a_deadline_covers_attempts_and_waits():
    inner = ScriptedLLM([RateLimitError(retry_after_s=20), "too late", "never"])
    llm, waits = retrying(inner)
    assert llm.call(ask(deadline_s=60.0)).content == "too late"
    assert inner.requests[1].deadline_s == pytest.approx(60 - waits[0])
    inner = ScriptedLLM([LLMTimeout(), "never"])
    llm, waits = retrying(inner, draw=lambda: 1.0)
    with pytest.raises(LLMTimeout):
        llm.call(ask(deadline_s=1.0))
    assert waits == []


def test_a_cancel_ends_a_wait_at_once():
    cancel, sleeping = CancelToken(), threading.Event()
    inner = ScriptedLLM([cut("half", RateLimitError(retry_after_s=300)), "never"])
    llm = RetryingLLM(inner, ASLEEP, on_wait=lambda *_facts: sleeping.set(), pause=sleep)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(llm.call, ask(), on_event=lambda _e: None, cancel=cancel)
        assert sleeping.wait(5)
        cancel.cancel("stop")
        with pytest.raises(LLMCancelled) as caught:
            waiting.result(5)
    assert caught.value.partial.content == "half"


@given(st.integers(1, 8), st.floats(0, 1, exclude_max=True))
def test_the_back_off_stays_below_its_bounds(attempt, draw):
    policy = RetryPolicy()
    slow = wait_for(RateLimitError(), attempt, policy, draw=lambda: draw)
    quick = wait_for(StreamCut(), attempt, policy, draw=lambda: draw)
    assert 0 <= slow <= min(30 * 2 ** (attempt - 1), 120)
    assert 0 <= quick <= min(2 ** (attempt - 1), 15)


NOW = datetime(2031, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "7", "retry-after-ms": "6500"}, 6.5),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=20), usegmt=True)}, 20),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=30), usegmt=True)}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_what_the_provider_asks_for(headers, seconds):
    assert retry_after_s(headers, NOW) == seconds


def header_cases():
    entry = json.loads((CASES / "29_retry_after.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=f"29{case['id']}") for case in entry["cases"]]


def at(value):
    if not value.startswith("@now"):
        return value
    when = datetime.now(UTC) + timedelta(seconds=float(value[4:-1]))
    return format_datetime(when, usegmt=True)


def serve(status, headers, body=b'{"error": {"message": "no"}}'):
    """A server that answers once as given, then well."""
    good = sample("openai_chat/text")
    answers = iter([(status, body, {name: at(value) for name, value in headers.items()})])

    async def answer(exchange):
        await exchange.answer(*next(answers, (200, payload(good), good["headers"])))

    return HTTPLoopback(answer)


@pytest.mark.parametrize("case", header_cases())
def test_case(case):
    with serve(case["status"], case["headers"]) as server:
        llm, waits = retrying(adapter("openai_chat", server.url))
        if case.get("tries") == 1 or (case.get("wait") is None and "or" in case):
            with pytest.raises(LLMError) as caught:
                llm.call(ASK)
            assert (len(server.requests), waits) == (1, [])
            if "or" in case:
                assert caught.value.retry_after_s >= 86_400
            return
        assert llm.call(ASK).content == "Paris."
        assert len(waits) == 1
        least, most = case["wait"]
        assert least <= waits[0] <= most


def test_attempts_are_not_multiplied():
    async def answer(exchange):
        await exchange.answer_json(429, {"error": {"message": "slow down"}})

    with HTTPLoopback(answer) as server:
        llm, _waits = retrying(adapter("openai_chat", server.url))
        with pytest.raises(RateLimitError):
            llm.call(ASK)
        assert len(server.requests) == 5


def quota_cases():
    entry = json.loads((CASES / "31_quota.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=f"31{case['id']}") for case in entry["cases"]]


@pytest.mark.parametrize("case", quota_cases())
def test_quota_case(case):
    wire = {"openai": "openai_chat"}.get(case["provider"], case["provider"])
    body = case["body"].encode() if isinstance(case["body"], str) else json.dumps(case["body"]).encode()
    good = sample(f"{wire}/text")
    answers = iter([(case["status"], body, case.get("headers", {}))])

    async def answer(exchange):
        await exchange.answer(*next(answers, (200, payload(good), good["headers"])))

    with HTTPLoopback(answer) as server:
        llm, waits = retrying(adapter(wire, server.url))
        if case["retry"] is True:
            llm.call(ASK)
            assert (len(server.requests), len(waits)) == (2, 1)
            return
        with pytest.raises(LLMError) as caught:
            llm.call(ASK)
        assert (len(server.requests), waits) == (1, [])
    if case.get("kind") == "billing":
        assert isinstance(caught.value, QuotaExhausted)
        assert "overloaded" not in str(caught.value)


def shared(client, **changes):
    return SharedLimiter(client, **{"provider": "openai", "api_key": "sk-a", "model": "m", **changes})


def test_one_429_pauses_every_process_of_the_key(redis):
    first, second = ScriptedLLM([RateLimitError(retry_after_s=60)]), ScriptedLLM(["never"])
    with pytest.raises(RateLimitError):
        RetryingLLM(first, RetryPolicy(), shared(redis)).call(ask())
    with pytest.raises(RateLimitError) as caught:
        RetryingLLM(second, RetryPolicy(), shared(redis)).call(ask())
    assert 55 < caught.value.retry_after_s < 80
    assert second.requests == []


def test_other_keys_and_models_go_on(redis):
    shared(redis).pause(60)
    assert shared(redis).wait_s() > 50
    assert shared(redis, api_key="sk-b").wait_s() == 0
    assert shared(redis, model="other").wait_s() == 0
    assert "sk-a" not in shared(redis).key


def test_a_shorter_pause_does_not_end_a_longer_one(redis):
    limiter = shared(redis)
    limiter.pause(60)
    shared(redis).pause(1)
    assert shared(redis).wait_s() > 50


def test_a_pause_ends_by_itself(redis):
    shared(redis).pause(0.5)
    assert shared(redis).wait_s() <= 0.5
    llm = RetryingLLM(ScriptedLLM(["done"]), RetryPolicy(), shared(redis))
    assert llm.call(ask()).content == "done"
    assert shared(redis).wait_s() == 0


def test_without_redis_each_process_keeps_its_own_pause(caplog):
    nowhere = redis_client.Redis(host="127.0.0.1", port=9, socket_connect_timeout=0.2, retry=Retry(NoBackoff(), 0))
    limiter = shared(nowhere)
    assert limiter.wait_s() == 0
    limiter.pause(60)
    assert limiter.wait_s() > 50
    assert caplog.text.count("out of reach") == 1
    nowhere.close()
