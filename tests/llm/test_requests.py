"""What every adapter sends: valid requests from any history, replay, thinking, schemas, cache marks (CAP-001 – 010)."""

from __future__ import annotations

import importlib.util
import itertools
import json

import pytest

from llm.errors import ContextTooLong
from llm.types import LLMMessage, ModelRequest, SystemBlock
from tests.llm.samples import ASK, CASES, MODELS, WEATHER, adapter, sample, serving

WIRES = list(MODELS)
TEXT = {wire: f"{wire}/text" for wire in WIRES}
LISTEN = {"on_event": lambda _event: None}


def rules():
    spec = importlib.util.spec_from_file_location("payload_rules", CASES / "payload_rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {"anthropic": module.check_anthropic, "openai_chat": module.check_openai, "ollama": module.check_ollama}


RULES = rules()


def history_cases():
    entry = json.loads((CASES / "15_history_empty_content.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=f"15{case['id']}") for case in entry["cases"]]


def as_messages(turns):
    for turn in turns:
        if turn["role"] == "tool":
            output = turn["output"] if isinstance(turn["output"], str) else json.dumps(turn["output"])
            yield LLMMessage("tool", output, tool_call_id=turn["call_id"], tool_name="noop")
        else:
            calls = tuple({"id": c["id"], "name": c["tool"], "arguments": c["args"]} for c in turn.get("calls", ()))
            yield LLMMessage(turn["role"], turn["text"], tool_calls=calls)


@pytest.mark.parametrize("case", history_cases())
@pytest.mark.parametrize("wire", list(RULES))
def test_any_history_is_a_valid_request(case, wire):
    request = ModelRequest(messages=tuple(as_messages(case["turns"])), system=case.get("system", "Be brief."))
    with serving(sample(TEXT[wire])) as server:
        adapter(wire, server.url).call(request)
        assert RULES[wire](server.requests[0].body) == []


def replayed(wire, name, **changes):
    """The reply of a sample, sent back with its results: the reply, and the second request's body."""
    with serving(sample(f"{wire}/{name}"), sample(TEXT[wire])) as server:
        llm = adapter(wire, server.url)
        reply = llm.call(ASK)
        said = LLMMessage(
            "assistant",
            reply.content,
            tool_calls=changes.get("calls", tuple(reply.tool_calls or ())),
            blocks=reply.blocks,
        )
        results = [LLMMessage("tool", "sunny", tool_call_id=c["id"], tool_name=c["name"]) for c in said.tool_calls]
        if changes.get("model"):
            llm = type(llm)(changes["model"], llm.settings)
        last = () if results else (LLMMessage("user", "go on"),)
        llm.call(ModelRequest(messages=(*ASK.messages, said, *results, *last), tools=(WEATHER,)))
        return reply, server.requests[1].body


def test_anthropic_blocks_go_back_as_they_came():
    _reply, body = replayed("anthropic", "thinking_omitted_tool_use")
    sent = sample("anthropic/thinking_omitted_tool_use")["body"]["content"]
    assert body["messages"][1]["content"] == [{k: v for k, v in block.items() if v is not None} for block in sent]
    assert [b["type"] for b in body["messages"][2]["content"]] == ["tool_result"]
    _reply, body = replayed("anthropic", "redacted_thinking")
    assert body["messages"][1]["content"][0]["type"] == "redacted_thinking"


def test_anthropic_thinking_is_dropped_whole_on_a_model_switch():
    _reply, body = replayed("anthropic", "thinking_omitted_tool_use", model="claude-sonnet-5-5")
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]


def test_parallel_results_go_into_one_message():
    reply, body = replayed("anthropic", "parallel_tool_use")
    assert [b["tool_use_id"] for b in body["messages"][2]["content"]] == [c["id"] for c in reply.tool_calls]
    assert RULES["anthropic"](body) == []


def test_ids_of_ours_replace_the_providers_in_its_blocks():
    calls = tuple({"id": f"ours_{n}", "name": "get_weather", "arguments": {}} for n in range(2))
    _reply, body = replayed("anthropic", "parallel_tool_use", calls=calls)
    assert [b["id"] for b in body["messages"][1]["content"] if b["type"] == "tool_use"] == ["ours_0", "ours_1"]
    _reply, body = replayed("openai_responses", "parallel_function_calls", calls=calls)
    assert [i["call_id"] for i in body["input"] if i.get("type") == "function_call"] == ["ours_0", "ours_1"]
    _reply, body = replayed("openai_chat", "parallel_tool_calls", calls=calls)
    assert [c["id"] for c in body["messages"][1]["tool_calls"]] == ["ours_0", "ours_1"]


def test_responses_items_go_back_whole_with_their_reasoning():
    reply, body = replayed("openai_responses", "function_call")
    sent = sample("openai_responses/function_call")["body"]["output"]
    assert body["input"][1 : 1 + len(sent)] == sent
    assert body["input"][-1] == {
        "type": "function_call_output",
        "call_id": reply.tool_calls[0]["id"],
        "output": "sunny",
    }
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    _reply, body = replayed("openai_responses", "function_call", model="gpt-6-luna")
    assert [item.get("type") for item in body["input"]] == [None, "function_call", "function_call_output"]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("broken", [True, False])
def test_malformed_arguments_go_back_as_an_empty_object(wire, broken):
    name = {
        "anthropic": "stream_malformed_tool_json",
        "openai_chat": "tool_call_malformed_arguments",
        "openai_responses": "function_call_malformed_arguments",
        "ollama": "tool_call_arguments_string",
    }[wire]
    case = sample(f"{wire}/{name}")
    with serving(case, sample(TEXT[wire])) as server:
        llm = adapter(wire, server.url)
        reply = llm.call(ASK, **(LISTEN if case["stream"] else {}))
        call = reply.tool_calls[0]
        assert call["arguments"] == {}
        assert call["arguments_error"]
        blocks = reply.blocks if broken else None
        said = LLMMessage("assistant", reply.content, tool_calls=(call,), blocks=blocks)
        result = LLMMessage(
            "tool", call["arguments_error"], tool_call_id=call["id"], tool_name=call["name"], is_error=True
        )
        llm.call(ModelRequest(messages=(*ASK.messages, said, result), tools=(WEATHER,)))
        body = server.requests[1].body
    if wire in RULES:
        assert RULES[wire](body) == []


def sent_by(wire, request, model=None):
    """The body that a request becomes on a wire."""
    with serving(sample(TEXT[wire])) as server:
        llm = adapter(wire, server.url)
        type(llm)(model or llm.model_id, llm.settings).call(request)
        return server.requests[0].body


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")  # the SDK on its oldest models
@pytest.mark.parametrize(
    ("model", "thinking", "effort"),
    [
        ("claude-opus-5-5", {"type": "adaptive", "display": "summarized"}, "high"),
        ("claude-sonnet-4-6", {"type": "adaptive", "display": "summarized"}, "high"),
        ("claude-sonnet-4-5-20250929", {"type": "enabled", "budget_tokens": 8000}, None),
        ("claude-haiku-4-5", {"type": "enabled", "budget_tokens": 8000}, None),
    ],
)
def test_cap_007_thinking_is_asked_for_in_the_models_own_form(model, thinking, effort):
    body = sent_by("anthropic", ModelRequest(messages=ASK.messages, thinking_tokens=8000, temperature=0.5), model)
    assert body["thinking"] == thinking
    assert body.get("output_config", {}).get("effort") == effort
    assert body["max_tokens"] > 8000
    assert "temperature" not in body


@pytest.mark.parametrize(("model", "asked"), [("claude-haiku-4-5", False), ("claude-opus-5-5", True)])
def test_a_round_that_began_without_thinking_goes_on_without_it_on_older_models(model, asked):
    call = {"id": "c1", "name": "get_weather", "arguments": {}}
    messages = (
        *ASK.messages,
        LLMMessage("assistant", tool_calls=(call,)),
        LLMMessage("tool", "sunny", tool_call_id="c1"),
    )
    body = sent_by("anthropic", ModelRequest(messages=messages, thinking_tokens=8000), model)
    assert ("thinking" in body) == asked


@pytest.mark.parametrize("wire", WIRES)
def test_thinking_is_not_asked_for_unless_the_request_says_so(wire):
    body = sent_by(wire, ASK)
    assert not body.keys() & {"thinking", "reasoning", "reasoning_effort"}
    assert body.get("think", False) is False


def test_thinking_on_the_other_wires():
    request = ModelRequest(messages=ASK.messages, thinking_tokens=8000)
    assert sent_by("openai_responses", request)["reasoning"] == {"effort": "high", "summary": "auto"}
    assert sent_by("openai_chat", request)["reasoning_effort"] == "high"
    assert sent_by("ollama", request)["think"] is True
    assert sent_by("ollama", request, "gpt-oss:20b")["think"] == "high"
    assert sent_by("ollama", ASK, "gpt-oss:20b")["think"] == "low"


@pytest.mark.parametrize(("model", "choice"), [("claude-opus-5-5", None), ("claude-opus-4-8", {"type": "any"})])
def test_a_forced_call_only_where_the_model_takes_it(model, choice):
    request = ModelRequest(messages=ASK.messages, tools=(WEATHER,), tool_choice="required")
    assert sent_by("anthropic", request, model).get("tool_choice") == choice


@pytest.mark.parametrize("wire", WIRES)
def test_a_response_schema_reaches_the_wire(wire):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    body = sent_by(wire, ModelRequest(messages=ASK.messages, response_schema=schema))
    place = {
        "anthropic": lambda: body["output_config"]["format"]["schema"],
        "openai_chat": lambda: body["response_format"]["json_schema"]["schema"],
        "openai_responses": lambda: body["text"]["format"]["schema"],
        "ollama": lambda: body["format"],
    }[wire]()
    assert place["properties"]["n"]["type"] == "integer"


def test_ollama_always_says_its_window_and_never_lets_it_be_cut_silently():
    nested = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "minProperties": 1}}}}
    request = ModelRequest(messages=ASK.messages, tools=({**WEATHER, "input_schema": nested},))
    body = sent_by("ollama", request)
    assert (body["options"]["num_ctx"], body["truncate"], body["shift"], body["think"]) == (16384, False, False, False)
    assert body["tools"][0]["function"]["parameters"] == nested


def test_ollama_an_older_server_that_cut_the_prompt_is_found_out():
    request = ModelRequest(messages=(LLMMessage("user", "many words " * 20_000),))
    with serving(sample("ollama/text")) as server, pytest.raises(ContextTooLong):
        adapter("ollama", server.url).call(request)


MARKS = (SystemBlock("foundation"), SystemBlock("identity", cache=True), SystemBlock("recipe", cache=True))


def without_marks(value):
    if isinstance(value, dict):
        return {k: without_marks(v) for k, v in value.items() if k != "cache_control"}
    return [without_marks(item) for item in value] if isinstance(value, list) else value


def marks_of(body):
    blocks = [*body.get("tools", []), *body.get("system", []), *(b for m in body["messages"] for b in m["content"])]
    return [block for block in blocks if "cache_control" in block]


def test_cap_010_cached_blocks_sent_on_second_call_and_the_prefix_never_changes():
    """Three turns of four rounds with a changing snapshot: what was sent before is sent again, byte for byte."""
    history, bodies = [], []
    case = sample("anthropic/thinking_omitted_tool_use")
    with serving(case) as server:
        llm = adapter("anthropic", server.url)
        for turn in range(3):
            history.append(LLMMessage("user", f"Question {turn}\n\n<context>snapshot {turn}</context>"))
            for step in range(4):
                marked = [*history]
                if step:
                    marked[-1] = LLMMessage(**{**as_dict(marked[-1]), "cache": True})
                reply = llm.call(ModelRequest(messages=tuple(marked), system=MARKS, tools=(WEATHER,)))
                call = {**reply.tool_calls[0], "id": f"toolu_{turn}_{step}"}
                history.append(LLMMessage("assistant", reply.content, tool_calls=(call,), blocks=reply.blocks))
                history.append(LLMMessage("tool", "sunny", tool_call_id=call["id"], tool_name=call["name"]))
            history.append(LLMMessage("assistant", f"Answer {turn}"))
        bodies = [request.body for request in server.requests]
    for before, after in itertools.pairwise(bodies):
        assert len(marks_of(after)) <= 4
        assert without_marks(after["system"]) == without_marks(before["system"])
        assert without_marks(after["tools"]) == without_marks(before["tools"])
        sent = without_marks(before["messages"])
        assert without_marks(after["messages"])[: len(sent)] == sent
        assert RULES["anthropic"](after) == []
    assert [b["text"] for b in bodies[1]["system"] if "cache_control" in b] == ["identity", "recipe"]
    assert "cache_control" in bodies[1]["messages"][-1]["content"][-1]
    assert "cache_control" not in str(bodies[0]["messages"])  # a turn's first round marks no user message
    assert all(b.get("type") != "thinking" for body in bodies for b in marks_of(body))


def as_dict(message):
    return {name: getattr(message, name) for name in LLMMessage.__slots__}


def test_never_more_than_four_marks():
    system = tuple(SystemBlock(f"layer {n}", cache=True) for n in range(6))
    messages = tuple(LLMMessage("user" if n % 2 == 0 else "assistant", f"m{n}", cache=True) for n in range(7))
    body = sent_by("anthropic", ModelRequest(messages=messages, system=system, tools=(WEATHER,)))
    assert len(marks_of(body)) == 4
    assert "cache_control" in body["messages"][-1]["content"][-1]
