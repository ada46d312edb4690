"""CAP-010 from prompt to wire: what PromptBuilder and the history lay out is what the provider's cache needs."""

from __future__ import annotations

import itertools
import json

import pytest

from llm.types import LLMMessage, ModelRequest
from loop.history import PastTurn, build_history
from prompt.builder import PromptBuilder
from prompt.types import AgentIdentity
from tests.llm.samples import WEATHER, adapter, sample, serving
from tests.llm.test_requests import RULES, marks_of, without_marks

TURNS, ROUNDS = 3, 4


class Recipe:
    name = "review"
    prompt_template = "Look before you speak."
    steps = ["look", "speak"]


def play(wire, tool_sample, answer_sample):
    """Three turns of four rounds, each with a new snapshot: the bodies that were sent, in order, by turn."""
    builder = (
        PromptBuilder().with_identity(AgentIdentity(name="a", system_tone="You are brief.")).with_workflow(Recipe())
    )
    turns, bodies = [], []
    case, last = sample(f"{wire}/{tool_sample}"), sample(f"{wire}/{answer_sample}")
    with serving(*[*[case] * (ROUNDS - 1), last] * TURNS) as server:
        llm = adapter(wire, server.url)
        for turn in range(TURNS):
            layer4 = builder.with_context(snapshot={"orders": turn}, snapshot_version=turn).dynamic()
            turns.append([LLMMessage("user", f"Question {turn}?\n\n{layer4}")])
            for step in range(ROUNDS):
                past = [PastTurn(number, tuple(messages)) for number, messages in enumerate(turns)]
                history = build_history(past, model=llm.model_id)
                reply = llm.call(ModelRequest(messages=history, system=builder.build(), tools=(WEATHER,)))
                calls = tuple({**c, "id": f"{c['id']}_{turn}_{step}_{n}"} for n, c in enumerate(reply.tool_calls or ()))
                turns[-1].append(LLMMessage("assistant", reply.content, tool_calls=calls, blocks=reply.blocks))
                turns[-1] += [
                    LLMMessage("tool", f"sunny {step}", tool_call_id=c["id"], tool_name=c["name"]) for c in calls
                ]
        bodies = [request.body for request in server.requests]
    return [bodies[at : at + ROUNDS] for at in range(0, len(bodies), ROUNDS)]


def history_of(wire, body):
    if wire == "openai_responses":
        return body["input"]
    return [message for message in without_marks(body["messages"]) if message["role"] != "system"]


@pytest.mark.parametrize(
    ("wire", "tool_sample", "answer_sample"),
    [
        ("anthropic", "thinking_omitted_tool_use", "thinking_text"),
        ("openai_chat", "tool_call", "text"),
        ("openai_responses", "function_call", "reasoning_text"),
        ("ollama", "tool_call_without_id", "text"),
    ],
)
def test_what_was_sent_before_is_sent_again_byte_for_byte(wire, tool_sample, answer_sample):
    bodies = list(itertools.chain(*play(wire, tool_sample, answer_sample)))
    assert len(bodies) == TURNS * ROUNDS
    for before, after in itertools.pairwise(bodies):
        for part in ("system", "instructions", "tools"):
            assert json.dumps(without_marks(after.get(part))) == json.dumps(without_marks(before.get(part)))
        sent = history_of(wire, before)
        assert json.dumps(history_of(wire, after)[: len(sent)]) == json.dumps(sent)
        if wire in RULES:
            assert RULES[wire](after) == []


def test_anthropics_marks_are_at_most_four_and_at_the_right_places():
    for turn in play("anthropic", "thinking_omitted_tool_use", "thinking_text"):
        for step, body in enumerate(turn):
            assert len(marks_of(body)) <= 4
            assert all("cache_control" in body["system"][index] for index in (-2, -1))
            newest = max(i for i, m in enumerate(body["messages"]) if "<context>" in json.dumps(m))
            assert "cache_control" not in json.dumps(body["messages"][newest]), "layer 4 is never marked"
            if step:
                assert "cache_control" in body["messages"][-1]["content"][-1], "the last complete round is"


def test_thinking_of_earlier_rounds_goes_along_unchanged():
    body = play("anthropic", "thinking_omitted_tool_use", "thinking_text")[-1][-1]
    thought = [b for m in body["messages"] for b in m["content"] if b["type"] == "thinking"]
    assert len(thought) == TURNS * ROUNDS - 1
    assert all(block["signature"] for block in thought)
