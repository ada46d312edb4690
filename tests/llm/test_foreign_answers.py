"""Answers that are not what the wire says: always a response or one of our errors, never a surprise."""

from __future__ import annotations

import copy
import os
import random

import pytest

from llm.errors import LLMError, MalformedResponse, StreamCut
from llm.testing.http import HTTPLoopback
from tests.llm.samples import ASK, adapter, names, play, sample

APIS = ("messages", "chat.completions", "responses", "chat")
VALUES = (None, "", "x", 0, -1, True, [], {}, [None], [[]], {"a": 1}, "{", 1e9, ["x"])
ROUNDS = int(os.environ.get("CAPSTAN_FUZZ_ROUNDS", "3"))  # of each sample


def places(value, path=()):
    """Every place inside a JSON value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from places(inner, (*path, index))


def mutated(case, chance):
    """A copy of a sample with a few of its values gone, doubled or replaced."""
    case = copy.deepcopy(case)
    part = next(name for name in ("body", "sse", "ndjson") if name in case)
    for _ in range(chance.randint(1, 3)):
        found = list(places(case[part]))
        if not found:
            break
        *path, last = chance.choice(found)
        holder = case[part]
        for step in path:
            holder = holder[step]
        if part == "sse" and last in ("data", "event") and len(path) == 1 and last == "event":
            continue
        how = chance.random()
        if how < 0.3:
            del holder[last]
        elif how < 0.4 and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        else:
            holder[last] = copy.deepcopy(chance.choice(VALUES))
    if part == "sse":
        case["sse"] = [item for item in case["sse"] if isinstance(item, dict) and "data" in item]
    return case


def fuzzed():
    return [name for name in names(api=APIS) if "text" not in sample(name)]


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "ollama"])
def test_a_foreign_answer_is_a_response_or_an_error_of_ours(wire):
    chance = random.Random(2031)
    current = []

    async def answer(exchange):
        await play(exchange, current[-1])

    surprises = []
    with HTTPLoopback(answer) as server:
        llm = adapter(wire, server.url)
        for name in [name for name in fuzzed() if name.startswith(f"{wire}/")]:
            for _ in range(ROUNDS):
                current.append(mutated(sample(name), chance))
                listen = {"on_event": lambda _event: None} if current[-1]["stream"] else {}
                try:
                    surprises += [(name, wrong) for wrong in surprising(llm.call(ASK, **listen))]
                except LLMError as exc:
                    if type(exc) is LLMError:
                        surprises.append((name, exc.details, repr(exc.__cause__), current[-1]))
    assert surprises == []


def surprising(response):
    """What no response may be."""
    calls = response.tool_calls or []
    if (response.stop_reason == "tool_use") != bool(calls):
        yield response
    if not all(isinstance(c["arguments"], dict) and isinstance(c["name"], str) and c["id"] for c in calls):
        yield calls
    if not all(isinstance(text, str) for text in (response.content, response.thinking, response.model)):
        yield response
    if not all(type(value) is int for value in response.usage.values()):
        yield response.usage


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "text/plain"])
@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "ollama"])
def test_a_page_in_place_of_a_stream_is_malformed_and_not_a_stream_that_was_cut(wire, kind):
    case = {**sample("openai_chat/http200_html"), "headers": {"content-type": kind}}
    with HTTPLoopback(lambda exchange: play(exchange, case)) as server, pytest.raises(MalformedResponse):
        adapter(wire, server.url).call(ASK, on_event=lambda _event: None)
    assert len(server.requests) == 1


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses"])
def test_an_event_stream_without_events_was_cut(wire):
    case = {**sample("openai_chat/http200_html"), "headers": {"content-type": "text/event-stream"}, "text": ""}
    with HTTPLoopback(lambda exchange: play(exchange, case)) as server, pytest.raises(StreamCut):
        adapter(wire, server.url).call(ASK, on_event=lambda _event: None)


def test_a_models_name_is_cut_to_what_its_rows_hold():
    case = copy.deepcopy(sample("openai_chat/text"))
    case["body"]["model"] = "m" * 500
    with HTTPLoopback(lambda exchange: play(exchange, case)) as server:
        assert adapter("openai_chat", server.url).call(ASK).model == "m" * 128
