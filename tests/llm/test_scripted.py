"""ScriptedLLM and the loopback server that plays the same scripts (CAP-004)."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from llm.errors import LLMCancelled, LLMError, RateLimitError
from llm.ports import BaseLLM, CancelToken
from llm.testing import Gate, ScriptedLLM, ScriptExhausted, When, after, call, calls, cut, held, say, user_said
from llm.types import LLMMessage, LLMResponse, ModelRequest, TextDelta, ToolSchema, UsageDelta


def ask(text: str) -> ModelRequest:
    return ModelRequest(messages=(LLMMessage("user", text),))


def test_cap_004_scripted_replays_in_order():
    llm = ScriptedLLM(["one", LLMResponse(content="two"), RateLimitError(retry_after_s=7)])
    assert isinstance(llm, BaseLLM)
    assert [llm.complete([LLMMessage("user", "a")]).content, llm.complete([LLMMessage("user", "b")]).content] == [
        "one",
        "two",
    ]
    with pytest.raises(RateLimitError) as caught:
        llm.call(ask("c"))
    assert caught.value.retry_after_s == 7


def test_an_exhausted_script_names_the_call_and_the_last_user_message():
    llm = ScriptedLLM(["only"])
    llm.call(ask("first"))
    with pytest.raises(ScriptExhausted) as caught:
        llm.call(ask("where am I?"))
    assert caught.value.details == {"call": 2, "last_user_message": "where am I?"}
    assert isinstance(caught.value, LLMError)


def test_an_empty_script_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        ScriptedLLM([])


def test_calls_get_ids_that_differ_between_rounds():
    llm = ScriptedLLM([calls(call("a", x=1), call("b"), text="Let me look."), call("a", x=2)])
    tools = [ToolSchema(name="a", description="", input_schema={"type": "object"})]
    first = llm.complete_with_tools([LLMMessage("user", "q")], "", tools=tools)
    second = llm.complete_with_tools([LLMMessage("user", "q")], "", tools=tools)
    assert first.stop_reason == "tool_use"
    assert [(c["name"], c["arguments"]) for c in first.tool_calls or []] == [("a", {"x": 1}), ("b", {})]
    ids = [c["id"] for c in [*(first.tool_calls or []), *(second.tool_calls or [])]]
    assert len(set(ids)) == 3
    assert llm.requests[0].tools == tuple(tools)


def test_a_predicate_answers_out_of_order_and_functions_see_the_request():
    llm = ScriptedLLM(["fallback", lambda request: f"you said {request.messages[-1].content}"])
    llm.when(user_said("weather"), "sunny", times=2)
    said = [llm.call(ask(text)).content for text in ("weather?", "hello", "weather!", "bye")]
    assert said == ["sunny", "fallback", "sunny", "you said bye"]


def test_after_a_tool_result():
    llm = ScriptedLLM([When(after("count"), "there are 3")])
    messages = (
        LLMMessage("user", "how many?"),
        LLMMessage("assistant", tool_calls=({"id": "c1", "name": "count", "arguments": {}},)),
        LLMMessage("tool", "3", tool_call_id="c1"),
    )
    assert llm.call(ModelRequest(messages=messages)).content == "there are 3"


def test_streamed_pieces_join_to_the_same_response():
    llm = ScriptedLLM([say("Hello there", pieces=["Hel", "lo ", "there"]), say("Hello there")])
    events = []
    streamed = llm.call(ask("hi"), on_event=events.append)
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["Hel", "lo ", "there"]
    assert [e for e in events if isinstance(e, UsageDelta)]
    assert streamed == llm.call(ask("hi"))
    assert "".join(ScriptedLLM(["a b  c\n d"]).stream([LLMMessage("user", "q")])) == "a b  c\n d"


def test_a_cut_stream_says_what_had_arrived():
    llm = ScriptedLLM([cut("half an", RateLimitError())])
    seen = []
    with pytest.raises(RateLimitError) as caught:
        llm.call(ask("q"), on_event=seen.append)
    assert "".join(e.text for e in seen) == "half an"
    assert caught.value.partial is not None
    assert caught.value.partial.content == "half an"


def test_a_held_answer_waits_for_its_gate_or_the_cancel():
    gate, cancel = Gate(), CancelToken()
    llm = ScriptedLLM([held(gate, "a"), held(gate, "b")])
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(llm.call, ask("q"), cancel=cancel)
        assert gate.reached.wait(5)
        cancel.cancel("stop")
        with pytest.raises(LLMCancelled, match="stop"):
            first.result(5)
        second = pool.submit(llm.call, ask("q"))
        gate.open()
        assert second.result(5).content == "b"


def test_threads_share_one_queue():
    llm = ScriptedLLM([str(n) for n in range(40)])
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _n: llm.call(ask("q")).content, range(40)))
    assert sorted(said, key=int) == [str(n) for n in range(40)]


def test_unknown_options_are_named():
    with pytest.raises(TypeError, match="tempo"):
        ScriptedLLM(["a"]).complete([LLMMessage("user", "q")], tempo=1)


def test_a_script_file(tmp_path):
    path = tmp_path / "happy.json"
    replies = [
        "hi",
        {"tool_calls": [{"name": "t", "arguments": {"n": 1}}]},
        {"error": "rate_limited", "retry_after_s": 2},
    ]
    path.write_text(json.dumps(replies))
    llm = ScriptedLLM.from_file(path)
    assert llm.call(ask("q")).content == "hi"
    assert (llm.call(ask("q")).tool_calls or [])[0]["arguments"] == {"n": 1}
    with pytest.raises(RateLimitError):
        llm.call(ask("q"))


def post(server, *, stream=False, text="q"):
    body = {"model": "loopback", "messages": [{"role": "user", "content": text}], "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    return httpx2.post(f"{server.base_url}/chat/completions", json=body, timeout=10)


def test_the_loopback_server_plays_the_same_script(openai_loopback):
    server = openai_loopback("hello", call("t", n=1), RateLimitError(retry_after_s=2), say("a b", thinking="hm"))
    assert post(server).json()["choices"][0]["message"]["content"] == "hello"
    called = post(server).json()["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    assert json.loads(called["message"]["tool_calls"][0]["function"]["arguments"]) == {"n": 1}
    limited = post(server)
    assert (limited.status_code, limited.headers["retry-after-ms"]) == (429, "2000")
    lines = [line[6:] for line in post(server, stream=True).text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == "a b"
    assert chunks[-1]["usage"]["prompt_tokens"] == 10
    assert post(server).status_code == 400  # exhausted: an error that no client retries
    assert len(server.requests) == 5


def test_the_loopback_server_sees_its_client_leave_and_keeps_the_answer(openai_loopback):
    gate = Gate()
    server = openai_loopback(held(gate, "late"), requeue=True)
    client = httpx2.Client(timeout=httpx2.Timeout(5, read=0.2))
    with pytest.raises(httpx2.ReadTimeout):
        client.post(f"{server.base_url}/chat/completions", json={"messages": [{"role": "user", "content": "q"}]})
    client.close()
    received = server.wait_for_request(1)
    assert received.closed_by_client.wait(5)
    assert received.stage == "before_headers"
    gate.open()
    assert post(server).json()["choices"][0]["message"]["content"] == "late"


def test_the_loopback_server_holds_a_stream_in_the_middle(openai_loopback):
    gate = Gate()
    server = openai_loopback(say("a b c", gate=gate, gate_after=1))
    body = {"messages": [{"role": "user", "content": "q"}], "stream": True}
    with httpx2.stream("POST", f"{server.base_url}/chat/completions", json=body, timeout=10) as answer:
        pieces = answer.iter_text()
        seen = next(pieces)
        while "a " not in seen:
            seen += next(pieces)
        assert "b " not in seen
        threading.Timer(0, gate.open).start()
        assert "[DONE]" in seen + "".join(pieces)
