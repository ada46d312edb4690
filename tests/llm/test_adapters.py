"""What every adapter does the same on the wire: cancelling, cutting, isolation, logs (CAP-001 – 010)."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

from llm.errors import (
    LLMAuthenticationError,
    LLMBadRequest,
    LLMCancelled,
    LLMConnectionError,
    LLMTimeout,
)
from llm.ports import BaseLLM, CancelToken
from llm.testing.http import HTTPLoopback
from llm.types import End, ModelRequest
from tests.llm.samples import ASK, CASES, MODELS, adapter, payload, sample, serving

WIRES = list(MODELS)
STREAM = {
    "anthropic": "stream_text",
    "openai_chat": "stream_text",
    "openai_responses": "stream_text",
    "ollama": "stream_text",
}
TEXT = {wire: f"{wire}/text" for wire in WIRES}
LISTEN = {"on_event": lambda _event: None}


@pytest.mark.parametrize("wire", WIRES)
def test_it_satisfies_the_protocol_and_hides_its_key(wire):
    llm = adapter(wire, "http://127.0.0.1:9")
    assert isinstance(llm, BaseLLM)
    assert "sk-test" not in repr(llm) + repr(llm.settings)
    with pytest.raises(LLMConnectionError) as caught:
        llm.call(ASK)
    assert "127.0.0.1:9" in str(caught.value)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stage", ["before_headers", "before_body", "mid_body"])
def test_a_cancel_closes_the_providers_socket_at_once(wire, stage):
    reached, cancel = threading.Event(), CancelToken()
    case = sample(f"{wire}/{STREAM[wire]}")
    first = payload(case).split(b"Par")[0] + b"Par"
    first = (
        payload(case)[: payload(case).index(b"\n", len(first)) + 2]
        if wire != "ollama"
        else payload(case).split(b"\n")[0] + b"\n"
    )

    async def answer(exchange):
        if stage != "before_headers":
            await exchange.start(200, case["headers"])
        if stage == "mid_body":
            await exchange.send(first)
        reached.set()
        await exchange.hold(exchange.gone.wait())

    seen = threading.Event()
    with HTTPLoopback(answer) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(adapter(wire, server.url).call, ASK, on_event=lambda _e: seen.set(), cancel=cancel)
        assert (seen if stage == "mid_body" else reached).wait(10)
        cancel.cancel("stop")
        with pytest.raises(LLMCancelled) as caught:
            waiting.result(5)
        received = server.wait_for_request(1)
        assert received.closed_by_client.wait(5)
        assert received.stage == stage
    assert caught.value.reason == "stop"
    assert (caught.value.partial is not None) == (stage == "mid_body")


@pytest.mark.parametrize("wire", WIRES)
def test_silence_ends_at_the_read_timeout_and_all_of_it_at_the_deadline(wire):
    async def answer(exchange):
        await exchange.hold(exchange.gone.wait())

    with HTTPLoopback(answer) as server:
        with pytest.raises(LLMTimeout):
            adapter(wire, server.url, read_timeout_s=0.2).call(ASK, **LISTEN)
        request = ModelRequest(messages=ASK.messages, deadline_s=0.2)
        with pytest.raises(LLMTimeout):
            adapter(wire, server.url).call(request)


@pytest.mark.parametrize("wire", WIRES)
def test_redirects_are_not_followed(wire):
    async def answer(exchange):
        await exchange.answer(307, b"", {"location": "/elsewhere"})

    with HTTPLoopback(answer) as server:
        with pytest.raises(LLMBadRequest):
            adapter(wire, server.url).call(ASK)
        assert len(server.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_nothing_of_the_environment_reaches_the_wire(wire, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_ORG_ID",
                 "OPENAI_PROJECT_ID", "OLLAMA_API_KEY", "OLLAMA_HOST"):  # fmt: skip
        monkeypatch.setenv(name, "leaked-value")
    for name in ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "x-leak: leaked-value")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving(sample(TEXT[wire])) as server:
        adapter(wire, server.url).call(ASK)
        headers = server.requests[0].headers
    assert "leaked-value" not in str(headers)
    assert headers["authorization"] == "Bearer sk-test-0123456789"


@pytest.mark.parametrize("wire", WIRES)
def test_a_key_in_the_providers_words_does_not_come_back(wire, caplog):
    async def answer(exchange):
        error = "bad key sk-test-0123456789" if wire == "ollama" else {"message": "bad key sk-test-0123456789"}
        await exchange.answer_json(401, {"type": "error", "error": error})

    caplog.set_level(logging.DEBUG, logger="llm")
    with HTTPLoopback(answer) as server, pytest.raises(LLMAuthenticationError) as caught:
        adapter(wire, server.url).call(ASK)
    assert "sk-test" not in "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "bad key ***" in str(caught.value)


def stream_cases():
    entry = json.loads((CASES / "16_stream_inbound.json").read_text(encoding="utf-8"))
    wires = {"anthropic": "anthropic", "openai": "openai_chat", "ollama": "ollama"}
    return [
        pytest.param(case, wires[case["provider"]], cut, entry["expect"], id=f"16{case['id']}-{cut}")
        for case in entry["cases"]
        for cut in entry["cut_sizes"]
    ]


@pytest.mark.parametrize(("case", "wire", "cut", "expect"), stream_cases())
def test_a_stream_however_it_is_cut(case, wire, cut, expect):
    body = base64.b64decode(case["body_b64"])

    async def answer(exchange):
        await exchange.start(200, {"content-type": case["content_type"]})
        for at in range(0, len(body), cut or len(body)):
            await exchange.send(body[at : at + (cut or len(body))])
            await asyncio.sleep(0)
        await exchange.finish()

    with HTTPLoopback(answer) as server:
        response = adapter(wire, server.url).call(ASK, **LISTEN)
    assert response.content == expect["text"]
    assert response.stop_reason == "end_turn"
    assert (response.usage["input_tokens"], response.usage["output_tokens"]) == (
        expect["usage_in"],
        expect["usage_out"],
    )


@pytest.mark.parametrize("wire", WIRES)
def test_the_end_of_the_events_is_the_response(wire):
    events = []
    with serving(sample(f"{wire}/{STREAM[wire]}")) as server:
        response = adapter(wire, server.url).call(ASK, on_event=events.append)
    assert events[-1] == End(response)


def test_logs_tell_how_much_and_the_trace_only_at_debug(caplog):
    caplog.set_level(logging.INFO, logger="llm")
    with serving(sample("anthropic/thinking_text")) as server:
        llm = adapter("anthropic", server.url)
        llm.call(ASK)
        assert "content_chars=6 thinking_chars=25" in caplog.text
        assert "wants a capital" not in caplog.text
        caplog.set_level(logging.DEBUG, logger="llm")
        llm.call(ASK)
    assert "wants a capital" in caplog.text
