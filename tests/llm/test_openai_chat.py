"""The chat adapter against a loopback server: cancelling, limits, isolation, and what it sends."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from llm.errors import (
    LLMBadRequest,
    LLMCancelled,
    LLMConnectionError,
    LLMTimeout,
    QuotaExhausted,
    RateLimitError,
    StreamCut,
)
from llm.ports import BaseLLM, CancelToken
from llm.testing import Gate, call, calls, cut, held, say
from llm.testing.http import HTTPLoopback
from llm.types import LLMMessage, ModelRequest, SystemBlock, TextDelta, ThinkingDelta, ToolCallDelta, Withdrawn
from tests.llm.samples import ASK, WEATHER, adapter


@pytest.fixture
def chat(openai_loopback):
    """Makes an adapter and the server that plays its script."""

    def make(*answers, **changes):
        server = openai_loopback(*answers)
        return adapter("openai_chat", server.base_url.removesuffix("/v1"), **changes), server

    return make


def ask(text="q", **fields):
    return ModelRequest(messages=(LLMMessage("user", text),), **fields)


def test_cap_001_adapter_satisfies_protocol(chat):
    llm, server = chat("Paris.")
    assert isinstance(llm, BaseLLM)
    response = llm.complete([LLMMessage("user", "Capital of France?")], "Be short.", 50, 0.0)
    assert (response.content, response.stop_reason) == ("Paris.", "end_turn")
    assert response.usage["input_tokens"] == 10
    sent = server.requests[0].body
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert (sent["max_tokens"], sent["temperature"], sent["stream"]) == (50, 0.0, False)
    assert "sk-test" not in repr(llm) + repr(llm.settings)


def test_cap_002_tool_calls_round_trip(chat):
    llm, server = chat(
        calls(call("get_weather", city="Paris"), call("get_weather", city="Rome"), text="Let me see."), "ok"
    )
    first = llm.complete_with_tools([LLMMessage("user", "weather?")], "", tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    assert [c["arguments"] for c in first.tool_calls] == [{"city": "Paris"}, {"city": "Rome"}]
    results = [LLMMessage("tool", "sunny", tool_call_id=c["id"], tool_name=c["name"]) for c in first.tool_calls]
    said = LLMMessage("assistant", first.content, tool_calls=tuple(first.tool_calls), blocks=first.blocks)
    llm.complete_with_tools([LLMMessage("user", "weather?"), said, *results], "", tools=[WEATHER], tool_choice="none")
    sent = server.requests[1].body
    assert [m.get("tool_call_id") for m in sent["messages"][2:]] == [c["id"] for c in first.tool_calls]
    assert sent["messages"][1]["tool_calls"][1]["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert (sent["tool_choice"], len(sent["tools"])) == ("none", 1)


def test_cap_003_stream_yields_deltas(chat):
    llm, server = chat(say("one two three", pieces=["one ", "two ", "three"]))
    assert list(llm.stream([LLMMessage("user", "count")])) == ["one ", "two ", "three"]
    assert server.requests[0].body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    "reply",
    [
        say("hello there"),
        say("Paris.", thinking="A capital."),
        say("<think>Hm, a\n capital.</think>\n\nParis."),
        say("<think>never closed"),
        say("a </think> b"),
        say("< not a tag"),
        say("cut off", stop_reason="max_tokens"),
        calls(call("get_weather", city="São Paulo"), call("list"), text="Let me look."),
        say(""),
    ],
    ids=range(9),
)
def test_streamed_and_unstreamed_give_the_same_response(chat, reply):
    llm, _server = chat(reply, reply)
    events = []
    streamed, whole = llm.call(ASK, on_event=events.append), llm.call(ASK)
    for response in (streamed, whole):
        for made in response.tool_calls or []:
            made["id"] = "same"  # the script numbers its calls
    assert (streamed.content, streamed.thinking, streamed.tool_calls, streamed.stop_reason, streamed.usage) == (
        whole.content, whole.thinking, whole.tool_calls, whole.stop_reason, whole.usage)  # fmt: skip
    assert "".join(e.arguments for e in events if isinstance(e, ToolCallDelta)) == "".join(
        json.dumps(c["arguments"]) for c in streamed.tool_calls or []
    )


def test_cap_008_thinking_field_separated_from_content(chat):
    llm, _server = chat(say("<think>secret plan</think>[1]", pieces=["<th", "ink>secret ", "plan</th", "ink>", "[1]"]))
    events = []
    response = llm.call(ask(), on_event=events.append)
    assert (response.content, response.thinking) == ("[1]", "secret plan")
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "[1]"
    assert "".join(e.text for e in events if isinstance(e, ThinkingDelta)) == "secret plan"


def test_reasoning_that_shows_only_at_its_end_is_withdrawn(chat):
    llm, _server = chat(say("I ponder </think>42"))
    events = []
    response = llm.call(ask(), on_event=events.append)
    assert (response.content, response.thinking) == ("42", "I ponder ")
    assert [type(e) for e in events if isinstance(e, Withdrawn)] == [Withdrawn]


def test_a_call_cut_by_the_token_limit_is_no_call(chat):
    reply = call("get_weather", city="Paris")
    object.__setattr__(reply.response, "stop_reason", "max_tokens")
    llm, _server = chat(reply)
    response = llm.call(ASK)
    assert (response.tool_calls, response.stop_reason) == (None, "max_tokens")


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancel_before_the_headers_closes_the_socket(chat, stream):
    gate, cancel = Gate(), CancelToken()
    llm, server = chat(held(gate, "late"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(llm.call, ask(), on_event=(lambda _e: None) if stream else None, cancel=cancel)
        assert gate.reached.wait(5)
        cancel.cancel("a person pressed stop")
        with pytest.raises(LLMCancelled) as caught:
            waiting.result(5)
    assert caught.value.reason == "a person pressed stop"
    assert caught.value.partial is None
    assert server.requests[0].closed_by_client.wait(5)
    assert server.requests[0].stage == "before_headers"


@pytest.mark.parametrize(("after", "stage"), [(0, "before_body"), (1, "mid_body")])
def test_a_cancel_inside_a_stream_closes_the_socket_and_keeps_what_came(after, stage):
    reached, cancel = threading.Event(), CancelToken()

    async def answer(exchange):
        await exchange.start(200, {"content-type": "text/event-stream"})
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                 "choices": [{"index": 0, "delta": {"content": "Par"}}],
                 "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}  # fmt: skip
        for _ in range(after):
            await exchange.send(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        reached.set()
        await exchange.hold(exchange.gone.wait())

    with HTTPLoopback(answer) as server:
        llm = adapter("openai_chat", server.url)
        seen = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(llm.call, ask(), on_event=lambda _e: seen.set(), cancel=cancel)
            assert (seen if after else reached).wait(5)
            cancel.cancel("stop")
            with pytest.raises(LLMCancelled) as caught:
                waiting.result(5)
        assert server.requests[0].closed_by_client.wait(5)
        assert server.requests[0].stage == stage
    if after:
        assert caught.value.partial.content == "Par"
        assert caught.value.partial.usage == {"input_tokens": 9, "output_tokens": 1}


def test_a_cancel_that_came_first_sends_nothing(chat):
    cancel = CancelToken()
    cancel.cancel("too late")
    llm, server = chat("x")
    with pytest.raises(LLMCancelled):
        llm.call(ask(), cancel=cancel)
    assert server.requests == []


def test_leaving_a_stream_closes_the_socket(chat):
    gate = Gate()
    llm, server = chat(say("a b c", gate=gate, gate_after=1))
    pieces = llm.stream([LLMMessage("user", "q")])
    assert next(pieces) == "a "
    pieces.close()
    assert server.requests[0].closed_by_client.wait(5)


def test_a_listener_that_fails_ends_the_call(chat):
    gate = Gate()
    llm, server = chat(say("a b c", gate=gate, gate_after=1))

    def listener(_event):
        raise KeyError("lease lost")

    with pytest.raises(KeyError, match="lease lost"):
        llm.call(ask(), on_event=listener)
    assert server.requests[0].closed_by_client.wait(5)


def test_the_deadline_is_on_the_whole_call(chat):
    gate = Gate()
    llm, server = chat(say("a b c", gate=gate, gate_after=1))
    with pytest.raises(LLMTimeout) as caught:
        llm.call(ask(deadline_s=0.2), on_event=lambda _e: None)
    assert caught.value.partial.content == "a "
    assert server.requests[0].closed_by_client.wait(5)


def test_hundreds_of_waiting_calls_cost_the_adapter_no_thread(chat):
    gate = Gate()
    llm, server = chat(*[held(gate, str(n)) for n in range(300)])
    before = threading.active_count()
    with ThreadPoolExecutor(300) as pool:
        waiting = [pool.submit(llm.call, ask()) for _ in range(300)]
        server.wait_for_request(300, 30)
        callers = sum(t.name.startswith("ThreadPoolExecutor") for t in threading.enumerate())
        assert threading.active_count() - callers - before <= 40  # the loop, and its few for looking up names
        gate.open()
        assert {w.result(30).content for w in waiting} == {str(n) for n in range(300)}


def test_a_failure_inside_a_stream_keeps_what_had_arrived(chat):
    llm, _server = chat(cut("half an", StreamCut()), cut("half an", LLMConnectionError()))
    for expected in (StreamCut, LLMConnectionError):
        with pytest.raises(expected) as caught:
            llm.call(ask(), on_event=lambda _e: None)
        assert caught.value.partial.content == "half an"


def test_errors_of_the_wire(chat):
    llm, server = chat(RateLimitError(retry_after_s=2.5), QuotaExhausted(), LLMConnectionError())
    with pytest.raises(RateLimitError) as limited:
        llm.call(ask())
    assert limited.value.retry_after_s == 2.5
    with pytest.raises(QuotaExhausted) as quota:
        llm.call(ask())
    assert not quota.value.retryable
    with pytest.raises(LLMConnectionError):
        llm.call(ask())
    assert len(server.requests) == 3  # the SDK retried nothing


def test_nobody_listens():
    with pytest.raises(LLMConnectionError) as caught:
        adapter("openai_chat", "http://127.0.0.1:9").call(ask())
    assert "127.0.0.1:9" in str(caught.value)


def test_redirects_are_not_followed_with_the_key():
    async def answer(exchange):
        await exchange.answer(307, b"", {"location": "/elsewhere"})

    with HTTPLoopback(answer) as server:
        with pytest.raises(LLMBadRequest):
            adapter("openai_chat", server.url).call(ask())
        assert len(server.requests) == 1


def test_nothing_of_the_environment_reaches_the_wire(chat, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "leaked-value")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-leak: leaked-value")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    llm, server = chat("ok")
    llm.call(ask())
    assert "leaked-value" not in str(server.requests[0].headers)
    assert server.requests[0].headers["authorization"] == "Bearer sk-test-0123456789"


def test_a_key_in_the_providers_words_does_not_come_back():
    async def answer(exchange):
        await exchange.answer_json(401, {"error": {"message": "bad key sk-test-0123456789", "code": "invalid_api_key"}})

    with HTTPLoopback(answer) as server, pytest.raises(Exception, match="bad key") as caught:
        adapter("openai_chat", server.url).call(ask())
    import traceback

    assert "sk-test" not in "".join(traceback.format_exception(caught.value))


def test_a_server_that_knows_other_parameters_is_asked_in_its_words():
    seen = []

    async def answer(exchange):
        body = exchange.request.body
        seen.append(sorted(body))
        for name in ("max_tokens", "stream_options", "reasoning_effort"):
            if name in body:
                error = {
                    "message": "no",
                    "type": "invalid_request_error",
                    "param": name,
                    "code": "unsupported_parameter",
                }
                await exchange.answer_json(400, {"error": error})
                return
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        await exchange.answer_json(
            200, {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    with HTTPLoopback(answer) as server:
        assert adapter("openai_chat", server.url).call(ask(thinking_tokens=8000)).content == "ok"
    assert "max_completion_tokens" in seen[-1]


def test_the_model_list_is_the_readiness_probe(chat):
    llm, _server = chat("x")
    assert llm.models() == ["loopback"]
    with pytest.raises(LLMConnectionError):
        adapter("openai_chat", "http://127.0.0.1:9").models(timeout_s=5)


def test_a_server_without_a_model_list():
    async def answer(exchange):
        await exchange.answer_json(404, {"error": {"message": "no such path"}})

    with HTTPLoopback(answer) as server:
        assert adapter("openai_chat", server.url).models() is None


def test_system_layers_become_one_text_and_blank_messages_are_mended(chat):
    llm, server = chat("ok")
    messages = (LLMMessage("user", " "), LLMMessage("assistant", ""), LLMMessage("user", "hi"))
    system = (SystemBlock("one", cache=True), SystemBlock(" "), SystemBlock("two"))
    llm.call(ModelRequest(messages=messages, system=system))
    sent = server.requests[0].body["messages"]
    assert [m["content"] for m in sent] == ["one\n\ntwo", "(empty message)", "hi"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_a_loop_and_a_client_of_its_own(chat):
    llm, server = chat("parent", "child", "parent again")
    assert llm.call(ask()).content == "parent"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, llm.call(ask()).content.encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 100) == b"child"
    os.close(reader)
    os.waitpid(pid, 0)
    assert llm.call(ask()).content == "parent again"
    assert len(server.requests) == 3


@pytest.mark.parametrize("stream", [True, False])
def test_what_no_text_may_hold_does_not_come_out(chat, stream):
    reply = say("a\0b \ud83d\ude80 \udfff", pieces=["a\0b \ud83d", "\ude80 ", "\udfff"])
    llm, _server = chat(reply)
    events = []
    response = llm.call(ask(), on_event=events.append if stream else None)
    assert response.content == "a\ufffdb \U0001f680 \ufffd"
    if stream:
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == response.content


def test_arguments_that_cannot_be_stored_are_an_error_of_the_call(chat):
    llm, _server = chat(call("get_weather", city="Par\0is"), call("get_weather", city="\ud800"))
    for _ in range(2):
        made = llm.call(ASK).tool_calls[0]
        assert made["arguments"] == {}
        assert "surrogate" in made["arguments_error"]
