"""An OpenAI-compatible server that plays a script, so that processes a test starts can be driven from the test.

with OpenAILoopback([say("Hello"), call("list_elements", kind="class")]) as server:
    env = {**os.environ, **server.environment()}   # LLM_PROVIDER=openai and its base URL, key and tiers
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from llm.errors import (
    ContextTooLong,
    LLMAuthenticationError,
    LLMBadRequest,
    LLMConnectionError,
    LLMError,
    LLMOverloaded,
    LLMPermissionError,
    LLMTimeout,
    MalformedResponse,
    ModelNotFound,
    QuotaExhausted,
    RateLimitError,
    StreamCut,
)
from llm.testing.gate import Gate
from llm.testing.http import ClientGone, Exchange, HTTPLoopback, Received
from llm.testing.replies import Answer, Predicate, Reply, Script, ScriptExhausted, When
from llm.types import LLMMessage, LLMResponse, ModelRequest, ToolCall, ToolSchema, Usage

_STATUS: tuple[tuple[type[LLMError], int, str], ...] = (
    (RateLimitError, 429, "rate_limit_exceeded"),
    (QuotaExhausted, 429, "insufficient_quota"),
    (LLMOverloaded, 503, "server_error"),
    (LLMAuthenticationError, 401, "invalid_api_key"),
    (LLMPermissionError, 403, "unsupported_country_region_territory"),
    (ModelNotFound, 404, "model_not_found"),
    (ContextTooLong, 400, "context_length_exceeded"),
    (LLMBadRequest, 400, "invalid_value"),
    (LLMTimeout, 408, "timeout"),
    (ScriptExhausted, 400, "script_exhausted"),
)
_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length",
           "refusal": "content_filter", "context_full": "length", "pause": "stop"}  # fmt: skip


class OpenAILoopback:
    """Chat completions and models on 127.0.0.1, answered from a script; a context manager.

    Args:
        answers: as for `ScriptedLLM`; predicates see the request as the port's `ModelRequest`.
        models: what `/v1/models` lists.
        requeue: put an answer back at the front of the queue when its client went away before it had all of it.

    Attributes:
        base_url: for `OPENAI_BASE_URL`, once started.
        script: the queue; `script.requests` are the requests in the port's form.
    """

    def __init__(
        self, answers: Iterable[Answer | When] = (), *, models: Iterable[str] = ("loopback",), requeue: bool = False
    ) -> None:
        self.script = Script(list(answers))
        self.models = list(models)
        self._requeue = requeue
        self._http = HTTPLoopback(self._handle)

    def __enter__(self) -> OpenAILoopback:
        self._http.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.__exit__(kind, error, trace)

    @property
    def base_url(self) -> str:
        return f"{self._http.url}/v1"

    @property
    def requests(self) -> list[Received]:
        """The raw HTTP requests for completions; each tells whether its client closed early."""
        return [r for r in self._http.requests if r.path.endswith("/chat/completions")]

    @property
    def remaining(self) -> int:
        return self.script.remaining

    def environment(self) -> dict[str, str]:
        """What a process needs to use this server for all tiers."""
        tiers = {f"LLM_TIER_{tier}": self.models[0] for tier in ("PLANNING", "EXECUTION", "FIELD")}
        return {"LLM_PROVIDER": "openai", "OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": "loopback", **tiers}

    def add(self, *answers: Answer | When) -> None:
        """Append to the script while it plays."""
        for answer in answers:
            self.script.add(answer)

    def when(self, fits: Predicate, answer: Answer, *, times: int | None = 1) -> None:
        """Answer the calls that fit, whatever the order."""
        self.script.add(When(fits, answer, times))

    def wait_for_request(self, number: int, timeout: float = 10.0) -> Received:
        """The HTTP request of that number (from 1; requests for the model list count too)."""
        return self._http.wait_for_request(number, timeout)

    async def _handle(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.method == "GET" and request.path.endswith("/models"):
            await exchange.answer_json(
                200, {"object": "list", "data": [{"id": m, "object": "model"} for m in self.models]}
            )
        elif request.method == "POST" and request.path.endswith("/chat/completions"):
            await self._complete(exchange)
        else:
            await exchange.answer_json(404, {"error": {"message": "no such path", "type": "invalid_request_error"}})

    async def _complete(self, exchange: Exchange) -> None:
        body = exchange.request.body
        try:
            number, reply, entry = self.script.next(request_from_wire(body))
        except ScriptExhausted as exc:
            await _answer_error(exchange, exc)
            return
        try:
            if body.get("stream"):
                await _play_streamed(exchange, reply, number, body)
            else:
                await _play_whole(exchange, reply, number, body)
        except ClientGone:
            if self._requeue:
                self.script.put_back(entry)
            raise


async def _play_whole(exchange: Exchange, reply: Reply, number: int, body: dict[str, Any]) -> None:
    await _pass(exchange, reply.gate)
    if reply.delay_s:
        await exchange.hold(asyncio.sleep(reply.delay_s * max(1, len(reply.text_pieces()))))
    if reply.error is not None:
        await _answer_error(exchange, reply.error)
        return
    response = reply.response
    message: dict[str, Any] = {"role": "assistant", "content": response.content or None}
    if response.thinking:
        message["reasoning_content"] = response.thinking
    if response.tool_calls:
        message["tool_calls"] = [_wire_call(call) for call in response.tool_calls]
    choice = {"index": 0, "message": message, "finish_reason": _FINISH[response.stop_reason]}
    await exchange.answer_json(
        200, {**_head(number, body, "chat.completion"), "choices": [choice], "usage": wire_usage(response.usage)}
    )


async def _play_streamed(exchange: Exchange, reply: Reply, number: int, body: dict[str, Any]) -> None:
    pieces = reply.text_pieces()
    if not pieces and reply.error is not None:
        await _pass(exchange, reply.gate)
        await _answer_error(exchange, reply.error)
        return
    if reply.gate is not None and reply.gate_after == 0:
        await _pass(exchange, reply.gate)  # nothing is sent before it, not even the headers
    await exchange.start(200, {"content-type": "text/event-stream"})
    head = _head(number, body, "chat.completion.chunk")
    for delta in _deltas(reply.response, pieces):
        if reply.gate is not None and delta.get("content") and delta["_piece"] == reply.gate_after:
            await _pass(exchange, reply.gate)
        if reply.delay_s and delta.get("content"):
            await exchange.hold(asyncio.sleep(reply.delay_s))
        wire = {name: value for name, value in delta.items() if name != "_piece"}
        await exchange.send(_sse({**head, "choices": [{"index": 0, "delta": wire, "finish_reason": None}]}))
    if reply.gate is not None and reply.gate_after >= len(pieces):
        await _pass(exchange, reply.gate)
    if reply.error is not None:
        await _break_stream(exchange, reply.error)
        return
    finish = {"index": 0, "delta": {}, "finish_reason": _FINISH[reply.response.stop_reason]}
    await exchange.send(_sse({**head, "choices": [finish]}))
    if (body.get("stream_options") or {}).get("include_usage"):
        await exchange.send(_sse({**head, "choices": [], "usage": wire_usage(reply.response.usage)}))
    await exchange.send(b"data: [DONE]\n\n")
    await exchange.finish()


def _deltas(response: LLMResponse, pieces: list[str]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if response.thinking:
        deltas.append({"reasoning_content": response.thinking})
    deltas.extend({"content": piece, "_piece": index} for index, piece in enumerate(pieces))
    for index, call in enumerate(response.tool_calls or []):
        whole = _wire_call(call)
        arguments = whole["function"]["arguments"]
        half = len(arguments) // 2
        opened = {**whole, "index": index, "function": {"name": call["name"], "arguments": arguments[:half]}}
        deltas.append({"tool_calls": [opened]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]})
    return deltas


async def _break_stream(exchange: Exchange, error: LLMError) -> None:
    if isinstance(error, LLMConnectionError):
        exchange.drop()
    elif isinstance(error, StreamCut):
        await exchange.finish()
    else:
        _status, body = _error_body(error)
        await exchange.send(_sse(body))
        await exchange.finish()


async def _answer_error(exchange: Exchange, error: LLMError) -> None:
    if isinstance(error, LLMConnectionError | StreamCut):
        exchange.drop()
        return
    if isinstance(error, MalformedResponse):
        await exchange.answer(200, b"<html>not a model</html>", {"content-type": "text/html"})
        return
    status, body = _error_body(error)
    wait = {} if error.retry_after_s is None else {"retry-after-ms": str(int(error.retry_after_s * 1000))}
    await exchange.answer_json(status, body, wait)


def _error_body(error: LLMError) -> tuple[int, dict[str, Any]]:
    for cls, status, code in _STATUS:
        if isinstance(error, cls):
            return status, {"error": {"message": str(error), "type": code, "param": None, "code": code}}
    return 500, {"error": {"message": str(error), "type": "server_error", "param": None, "code": None}}


async def _pass(exchange: Exchange, gate: Gate | None) -> None:
    if gate is None or gate.is_open:
        if gate is not None:
            gate.reached.set()
        return
    loop = asyncio.get_running_loop()
    opened = asyncio.Event()
    gate.on_open(lambda: loop.call_soon_threadsafe(opened.set))
    await exchange.hold(opened.wait())


def _head(number: int, body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_796_000_000, "model": body.get("model", "")}


def _sse(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _wire_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return {"id": call["id"], "type": "function", "function": function}


def wire_usage(usage: Usage) -> dict[str, Any] | None:
    """Our usage in the chat wire's words; None when it is unknown."""
    if not usage:
        return None
    prompt, completion = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.get("cache_read_tokens", 0)},
        "completion_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
    }


def request_from_wire(body: dict[str, Any]) -> ModelRequest:
    """A chat-completions body as the port's request, for predicates and assertions."""
    system, messages = [], []
    for wire in body["messages"]:
        content = wire.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        if wire["role"] in ("system", "developer"):
            system.append(content)
            continue
        calls = tuple(
            ToolCall(id=c["id"], name=c["function"]["name"], arguments=json.loads(c["function"]["arguments"] or "{}"))
            for c in wire.get("tool_calls") or []
        )
        messages.append(LLMMessage(wire["role"], content, tool_calls=calls, tool_call_id=wire.get("tool_call_id", "")))
    tools = tuple(
        ToolSchema(
            name=tool["function"]["name"],
            description=tool["function"].get("description", ""),
            input_schema=tool["function"].get("parameters", {}),
        )
        for tool in body.get("tools") or []
    )
    choice = body.get("tool_choice", "auto")
    return ModelRequest(
        messages=tuple(messages),
        system="\n\n".join(system),
        tools=tools,
        tool_choice=choice if choice in ("auto", "none", "required") else "required",
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or 0,
        temperature=body.get("temperature"),
    )
