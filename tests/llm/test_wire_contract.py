"""Every wire sample through the real SDK and our adapter: the neutral outcome, or the right error."""

from __future__ import annotations

import pytest

from llm.errors import (
    ContextTooLong,
    LLMAuthenticationError,
    LLMBadRequest,
    LLMConflict,
    LLMError,
    LLMOverloaded,
    LLMPermissionError,
    LLMTimeout,
    MalformedResponse,
    ModelNotFound,
    QuotaExhausted,
    RateLimitError,
    RequestTooLarge,
    StreamCut,
)
from llm.types import End, TextDelta, ThinkingDelta, UsageDelta, Withdrawn
from tests.llm.samples import ASK, adapter, names, sample, serving

KINDS = {
    "rate_limit": RateLimitError,
    "overloaded": LLMOverloaded,
    "server": LLMOverloaded,
    "timeout": LLMTimeout,
    "conflict": LLMConflict,
    "auth": LLMAuthenticationError,
    "permission": LLMPermissionError,
    "billing": QuotaExhausted,
    "bad_request": LLMBadRequest,
    "context_overflow": ContextTooLong,
    "too_large": RequestTooLarge,
    "model_not_found": ModelNotFound,
    "bad_response": MalformedResponse,
    "incomplete_stream": StreamCut,
}
# Where we say something else than the sample proposes, and why.
DEVIATIONS = {
    # A 500 whose cause shows only in its wording; we match on no wording. Retryable either way.
    "openai_chat/error_500_llamacpp_parse": LLMOverloaded,
}
STOPS = {"truncated": {"max_tokens", "context_full"}, "refusal": {"refusal"}, "continue": {"pause"},
         "tool_calls": {"tool_use"}, "text": {"end_turn", "stop_sequence"}, "empty": {"end_turn"}}  # fmt: skip
# The SDK gives up on arguments that came as text; read by us they are a call whose arguments are no JSON, as on every
# other wire, so that the model is told and tries again.
EXPECTED = {
    "ollama/tool_call_arguments_string": {
        "outcome": "tool_calls",
        "tool_calls": [{"id": "<generated>", "name": "get_weather", "arguments": None, "arguments_error": True}],
        "usage": {"uncached_input": 50, "cache_read": 0, "cache_write": 0, "output": 12, "reasoning": 0},
    }
}
APIS = ("messages", "chat.completions", "responses", "chat")


@pytest.mark.parametrize("name", names(api=APIS))
def test_sample(name):
    case = sample(name)
    wire, expect = name.split("/")[0], EXPECTED.get(name, case["expect"])
    events = []
    with serving(case) as server:
        llm = adapter(wire, server.url)
        ask = {"on_event": events.append} if case["stream"] else {}
        if expect["outcome"] == "error":
            with pytest.raises(LLMError) as caught:
                llm.call(ASK, **ask)
            check_error(name, caught.value, expect)
            return
        response = llm.call(ASK, **ask)
        assert len(server.requests) == 1
    check_response(response, expect)
    if case["stream"]:
        check_events(events, response)


def check_error(name, error, expect):
    wanted = DEVIATIONS.get(name, KINDS[expect["kind"]])
    assert isinstance(error, wanted)
    assert error.retryable is expect["retryable"]
    assert error.retry_after_s == expect.get("retry_after_s")
    if "partial_text" in expect:
        assert error.partial is not None
        assert error.partial.content == expect["partial_text"]
    assert "sk-test" not in str(error) + repr(error)


def check_response(response, expect):
    assert response.stop_reason in STOPS[expect["outcome"]]
    assert (response.stop_reason == "tool_use") == bool(response.tool_calls)
    assert response.content == expect.get("text", response.content)
    if expect["outcome"] == "empty":
        assert response.content == ""
    assert response.thinking == expect.get("thinking", response.thinking)
    assert response.model
    check_calls(response, expect)
    check_usage(response.usage, expect.get("usage"))


def check_calls(response, expect):
    if expect["outcome"] != "tool_calls":
        assert response.tool_calls is None
        return
    assert len(response.tool_calls) == len(expect["tool_calls"])
    for call, wanted in zip(response.tool_calls, expect["tool_calls"], strict=True):
        assert call["name"] == wanted["name"]
        assert call["id"] == wanted["id"] if wanted["id"] != "<generated>" else call["id"]
        assert call["arguments"] == (wanted["arguments"] or {})
        assert ("arguments_error" in call) == wanted.get("arguments_error", False)
    assert len({call["id"] for call in response.tool_calls}) == len(response.tool_calls)


def check_usage(usage, expect):
    if not expect:
        assert usage == {}
        return
    parts = [expect["uncached_input"], expect["cache_read"], expect["cache_write"]]
    if None in parts:
        assert "input_tokens" not in usage
    else:
        assert usage["input_tokens"] == sum(parts)
    assert usage["output_tokens"] == expect["output"]
    assert usage.get("cache_read_tokens", 0) == expect["cache_read"]
    assert usage.get("cache_write_tokens", 0) == expect["cache_write"]
    assert usage.get("reasoning_tokens", 0) == expect["reasoning"]


def check_events(events, response):
    text, thinking = "", ""
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, ThinkingDelta):
            thinking += event.text
        elif isinstance(event, Withdrawn):
            text = ""
    assert (text, thinking) == (response.content, response.thinking)
    assert events[-1] == End(response)
    assert [e.usage for e in events if isinstance(e, UsageDelta)][-1:] == ([response.usage] if response.usage else [])


def test_other_apis():
    with serving(sample("anthropic/models_list")) as server:
        assert adapter("anthropic", server.url).models() == ["claude-opus-5-5"]
    with serving(sample("anthropic/count_tokens")) as server:
        assert adapter("anthropic", server.url).count_tokens(ASK) == 2095
    with serving(sample("ollama/tags")) as server:
        assert adapter("ollama", server.url).models() == ["qwen3:4b"]
    with serving(sample("ollama/ps")) as server:
        assert adapter("ollama", server.url).active_window() == 4096
    with serving(sample("ollama/show")) as server:
        assert adapter("ollama", server.url).capabilities() == (["completion", "tools", "thinking"], 40960)


def test_all_samples_are_covered():
    tested = len(names(api=APIS)) + len(names(api=("count_tokens", "models", "embeddings", "ps", "show", "tags")))
    assert tested == 143
