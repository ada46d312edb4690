"""Any stored history makes a request that every provider accepts (CAP-041, errata 040/041)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm.types import LLMMessage, ProviderBlocks, ToolCall
from loop.history import GO_ON, INTERRUPTED, PastTurn, Window, build_history, estimate_tokens, kept_turns
from tests.llm.samples import MODELS
from tests.loop.dialects import blocks_of, broken_rules, payload

CASES = Path(__file__).parents[1] / "fixtures" / "cases"
MAKERS = ("anthropic", "openai_responses")  # the wires whose replies have blocks of their own


EXAMPLES = int(os.environ.get("CAPSTAN_EXAMPLES", "150"))  # more with `CAPSTAN_EXAMPLES=1500 make test`


def call_of(raw: dict[str, Any]) -> ToolCall:
    return ToolCall(id=raw["id"], name=raw["tool"], arguments=raw["args"])


def message_of(raw: dict[str, Any]) -> LLMMessage:
    """A message of the shared cases."""
    if raw["role"] == "tool":
        output = raw["output"]
        text = output if isinstance(output, str) else "" if output is None else json.dumps(output)
        return LLMMessage("tool", text, tool_call_id=raw["call_id"], is_error=raw["is_error"])
    return LLMMessage(raw["role"], raw["text"], tool_calls=tuple(call_of(c) for c in raw.get("calls", [])))


def turns_of(raws: list[dict[str, Any]]) -> list[PastTurn]:
    """Messages split at each user message."""
    turns: list[list[LLMMessage]] = []
    for raw in raws:
        if raw["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message_of(raw))
    return [PastTurn(key=n, messages=tuple(messages)) for n, messages in enumerate(turns, start=1)]


# -- the shared cases


def test_cap_041_every_window_and_budget_of_case_12_is_valid():
    turns = turns_of(json.loads((CASES / "12_history_window.json").read_text())["turns"])
    for size in range(1, len(turns) + 1):
        for tokens in range(0, 400, 7):
            built = build_history(turns, window=Window(turns=size, tokens=tokens))
            assert broken_rules(built) == {}, (size, tokens)
            assert any("When will it come?" in m.content for m in built)
            called = [c["id"] for m in built for c in m.tool_calls]
            assert called == [m.tool_call_id for m in built if m.role == "tool"]


def test_case_12_inside_one_long_run():
    rounds: list[LLMMessage] = [LLMMessage("user", "Count everything.")]
    for n in range(10):
        rounds.append(LLMMessage("assistant", tool_calls=(ToolCall(id=f"r{n}", name="count", arguments={"n": n}),)))
        rounds.append(LLMMessage("tool", "x" * 5_000, tool_call_id=f"r{n}"))
    older = turns_of([{"role": "user", "text": "Hi."}, {"role": "assistant", "text": "Hello.", "calls": []}])
    for tokens in (0, 10, 1_000, 100_000):
        built = build_history([*older, PastTurn(99, tuple(rounds))], window=Window(turns=3, tokens=tokens))
        assert broken_rules(built) == {}
        assert sum(len(m.tool_calls) for m in built) == 10  # the run under way goes along whole
    assert build_history([*older, PastTurn(99, tuple(rounds))], summary="Earlier: a greeting.")[0].content.startswith(
        "Earlier"
    )


@pytest.mark.parametrize(
    "case", json.loads((CASES / "15_history_empty_content.json").read_text())["cases"], ids=lambda c: c["id"]
)
def test_case_15_nothing_empty_goes_out(case):
    built = build_history(turns_of(case["turns"]))
    assert broken_rules(built) == {}
    assert built[-1].role != "assistant"


# -- repairs, one by one


def test_a_call_without_a_result_gets_an_interrupted_one():
    turn = PastTurn(
        7,
        (
            LLMMessage("user", "go"),
            LLMMessage(
                "assistant",
                tool_calls=(ToolCall(id="a", name="x", arguments={}), ToolCall(id="b", name="y", arguments={})),
            ),
            LLMMessage("tool", "late", tool_call_id="b"),
        ),
    )
    built = build_history([turn, PastTurn(8, (LLMMessage("user", "and?"),))])
    assert [(m.role, m.content) for m in built[2:4]] == [("tool", INTERRUPTED), ("tool", "late")]
    assert (built[2].is_error, built[2].tool_name) == (True, "x")


def test_ids_that_are_missing_or_taken_are_made_from_the_place_of_the_call():
    blocks = ProviderBlocks(provider="p", model="alpha", items=[{"id": "same"}])
    reply = LLMMessage("assistant", tool_calls=(ToolCall(id="same", name="x", arguments={}),), blocks=blocks)
    turns = [
        PastTurn(n, (LLMMessage("user", "go"), reply, LLMMessage("tool", str(n), tool_call_id="same"))) for n in (1, 2)
    ]
    built = build_history([*turns, PastTurn(3, (LLMMessage("user", "?"),))])
    ids = [c["id"] for m in built for c in m.tool_calls]
    assert ids == ["same", "call_2_1_1"]
    assert built[4].blocks is None  # its blocks name the id that is taken
    assert broken_rules(built) == {}


def test_a_message_without_an_answer_is_merged_with_the_next_question():
    turns = [PastTurn(1, (LLMMessage("user", "one"),)), PastTurn(2, (LLMMessage("user", "two"),))]
    assert [m.content for m in build_history(turns)] == ["one\n\ntwo"]


def test_a_paused_reply_stays_as_it_was_sent_with_its_thinking():
    """The request behind it asked to go on; what follows changes nothing in front of it."""
    question, paused = LLMMessage("user", "go"), LLMMessage("assistant", "First half,", blocks=block("alpha"))
    first = build_history([PastTurn(1, (question, paused))])
    assert [(m.role, m.content) for m in first[1:]] == [("assistant", "First half,"), ("user", GO_ON)]
    called = LLMMessage("assistant", tool_calls=(ToolCall(id="k", name="x", arguments={}),), blocks=block("alpha"))
    going = build_history([PastTurn(1, (question, paused, called, LLMMessage("tool", "r", tool_call_id="k")))])
    assert [replace(m, cache=False) for m in going[:3]] == [replace(m, cache=False) for m in first]
    assert [m.blocks for m in going if m.role == "assistant"] == [block("alpha")] * 2


def test_the_cache_mark_sits_on_the_last_complete_round_else_before_the_question():
    first = PastTurn(1, (LLMMessage("user", "a"), LLMMessage("assistant", "b")))
    asked = PastTurn(2, (LLMMessage("user", "c <context>"),))
    assert [m.cache for m in build_history([first, asked])] == [False, True, False]
    called = (ToolCall(id="k", name="x", arguments={}),)
    going = replace(
        asked,
        messages=(
            *asked.messages,
            LLMMessage("assistant", tool_calls=called),
            LLMMessage("tool", "r", tool_call_id="k"),
        ),
    )
    assert [m.cache for m in build_history([first, going])] == [False, False, False, False, True]
    assert [m.cache for m in build_history([asked])] == [False]


def block(model: str) -> ProviderBlocks:
    return ProviderBlocks(provider="p", model=model, items=[{"type": "thinking", "signature": "s"}])


def test_blocks_of_earlier_turns_go_along_all_or_none():
    def turn(key: int, model: str) -> PastTurn:
        return PastTurn(key, (LLMMessage("user", f"q{key}" * 50), LLMMessage("assistant", "a", blocks=block(model))))

    ask = PastTurn(9, (LLMMessage("user", "?"),))
    kept = [
        m.blocks
        for m in build_history([turn(1, "alpha"), turn(2, "alpha"), ask], model="alpha")
        if m.role == "assistant"
    ]
    assert kept == [block("alpha"), block("alpha")]
    for turns, options in (
        ([turn(1, "alpha"), turn(2, "beta"), ask], {"model": "beta"}),  # a model in between
        ([turn(1, "alpha"), turn(2, "alpha"), ask], {"model": "beta"}),  # another model answers
        ([turn(1, "alpha"), turn(2, "alpha"), ask], {"model": "alpha", "window": Window(turns=2)}),  # cut
        ([turn(1, "alpha"), turn(2, "alpha"), ask], {"model": "alpha", "summary": "Earlier: …"}),  # condensed
    ):
        assert [m.blocks for m in build_history(turns, **options) if m.role == "assistant"].count(None) == sum(
            m.role == "assistant" for m in build_history(turns, **options)
        )


def test_tool_results_are_shortened_before_turns_go():
    called = (ToolCall(id="k", name="x", arguments={}),)
    big = PastTurn(
        1,
        (
            LLMMessage("user", "q"),
            LLMMessage("assistant", tool_calls=called),
            LLMMessage("tool", "z" * 9_000, tool_call_id="k"),
            LLMMessage("assistant", "done"),
        ),
    )
    built = build_history([big, PastTurn(2, (LLMMessage("user", "next"),))], window=Window(tokens=400))
    assert "shortened" in built[2].content
    assert len(built) == 5


def test_the_window_stays_where_it_is_while_the_turn_runs():
    old = [PastTurn(n, (LLMMessage("user", "x" * 700), LLMMessage("assistant", "y" * 700))) for n in range(1, 9)]
    window = Window(tokens=2_000)
    messages: tuple[LLMMessage, ...] = (LLMMessage("user", "now"),)
    kept = kept_turns([*old, PastTurn(9, messages)], window=window)
    for n in range(6):
        messages += (
            LLMMessage("assistant", tool_calls=(ToolCall(id=f"n{n}", name="x", arguments={}),)),
            LLMMessage("tool", "w" * 3_000, tool_call_id=f"n{n}"),
        )
        assert kept_turns([*old, PastTurn(9, messages)], window=window) == kept


def test_other_scripts_are_estimated_by_their_bytes():
    assert estimate_tokens(LLMMessage("user", "word" * 700)) == 806
    assert estimate_tokens(LLMMessage("user", "字" * 2_800)) == 2_406
    assert estimate_tokens(LLMMessage("user", "\ud800")) == 6  # half a pair is no reason to fail


# -- any history at all

texts = st.sampled_from(["", " ", "\n\n", "a", "word and more", "trailing   \n", "ünïcode ✓"])
ids = st.sampled_from(["", "c1", "c2", "c3", "dup"])
arguments = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 3) | texts, max_size=2)
made_calls = st.lists(
    st.builds(ToolCall, id=ids, name=st.sampled_from(["look", "write"]), arguments=arguments), max_size=4
)


@st.composite
def turn_messages(draw: st.DrawFn) -> tuple[LLMMessage, ...]:
    """A turn as crashes, aborts and bad providers leave it."""
    messages: list[LLMMessage] = []
    if draw(st.booleans()) or draw(st.booleans()):
        messages.append(LLMMessage("user", draw(texts)))
    for _ in range(draw(st.integers(0, 4))):
        calls, text, maker = draw(made_calls), draw(texts), draw(st.sampled_from([None, *MAKERS, *MAKERS]))
        blocks = None if maker is None else blocks_of(maker, text, calls)
        messages.append(LLMMessage("assistant", text, tool_calls=tuple(calls), blocks=blocks))
        results = [LLMMessage("tool", draw(texts), tool_call_id=c["id"], is_error=draw(st.booleans())) for c in calls]
        results = draw(st.permutations(results))[: draw(st.integers(0, len(results)))]
        messages.extend(results)
        if draw(st.integers(0, 5)) == 0:
            messages.append(LLMMessage("tool", "stray", tool_call_id=draw(ids)))
        if draw(st.integers(0, 5)) == 0:
            messages.append(LLMMessage("user", "(a note of the loop)"))
    return tuple(messages)


histories = st.lists(turn_messages(), min_size=0, max_size=6)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    past=histories,
    running=turn_messages(),
    question=texts,
    size=st.integers(1, 8),
    tokens=st.integers(0, 400),
    model=st.sampled_from(["", *(MODELS[maker] for maker in MAKERS)]),
    summary=st.sampled_from(["", "Earlier: things."]),
)
def test_any_history_is_valid_in_every_dialect(past, running, question, size, tokens, model, summary):
    newest = (LLMMessage("user", f"{question} [newest]"), *running[1:])
    turns = [PastTurn(n, messages) for n, messages in enumerate([*past, newest], start=1)]
    window = Window(turns=size, tokens=tokens, result_chars=10)
    built = build_history(turns, window=window, model=model, summary=summary)
    assert broken_rules(built) == {}
    assert any("[newest]" in m.content for m in built)
    again = build_history(turns, window=window, model=model, summary=summary)
    assert repr(built) == repr(again)  # the same bytes for the same rows
    assert all(payload(wire, built) == payload(wire, again) for wire in ("anthropic", "openai_responses"))
    at = max(index for index, m in enumerate(built) if "[newest]" in m.content)
    earlier = [m for m in built[:at] if m.role == "assistant"]
    if any(m.blocks is not None for m in earlier):  # thinking blocks of earlier turns: all or none, of one model
        assert all(m.blocks is not None for m in earlier if m.tool_calls)
        assert len({m.blocks["model"] for m in earlier if m.blocks is not None} | ({model} - {""})) == 1
        assert not summary


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(past=histories, running=turn_messages())
def test_what_a_turn_has_sent_stays_as_it_was_while_it_goes_on(past, running):
    """Append-only: each round's request begins with the one before it, so that caches hit and thinking stays valid."""
    turns = [PastTurn(n, messages) for n, messages in enumerate(past, start=1)]
    messages: tuple[LLMMessage, ...] = (LLMMessage("user", "go"),)
    sent = [replace(m, cache=False) for m in build_history([*turns, PastTurn(99, messages)])]
    for n in range(3):
        called = (ToolCall(id="dup", name="look", arguments={}),)
        messages += (LLMMessage("assistant", tool_calls=called), LLMMessage("tool", f"r{n}", tool_call_id="dup"))
        now = [replace(m, cache=False) for m in build_history([*turns, PastTurn(99, messages)])]
        assert now[: len(sent)] == sent
        sent = now
