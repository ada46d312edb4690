"""Ollama's own API, with our payload: its SDK drops nested schemas, call ids and the switch against silent cutting."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import ollama

from llm import runtime
from llm.adapters.base import AsyncAdapter
from llm.adapters.ollama_answer import OllamaAnswer
from llm.adapters.openai_chat import wire_tool
from llm.adapters.tls import shared_tls
from llm.adapters.wire import cause_of, effort, history, provider_error, reading, reusable, system_text
from llm.errors import ContextTooLong, LLMConnectionError, LLMError, LLMTimeout, MalformedResponse
from llm.tokens import estimate_request
from llm.types import End, LLMMessage, ModelEvent, ModelRequest


class OllamaLLM(AsyncAdapter):
    """One model of an Ollama server (CAP-001 – 003).

    `num_ctx` and `truncate: false` go with every request: without them the server forgets the oldest messages and says
    nothing. `think` is always explicit, as an unset one means yes.
    """

    provider = "ollama"

    def make_client(self) -> ollama.AsyncClient:
        client = ollama.AsyncClient(
            host=self.settings.base_url,
            timeout=self._timeout(self.settings.timeout_s, stream=True),
            follow_redirects=False,
            trust_env=False,
            verify=shared_tls(httpx.create_ssl_context),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )
        client._client.headers.pop("authorization", None)  # OLLAMA_API_KEY has no other switch
        if self.settings.api_key:
            client._client.headers["authorization"] = f"Bearer {self.settings.api_key}"
        return client

    async def model_ids(self) -> list[str] | None:
        tags = await self._get("GET", "/api/tags")
        return [str(model.get("model") or model.get("name")) for model in tags.get("models") or []]

    def capabilities(self, *, timeout_s: float = 10.0) -> tuple[list[str], int | None]:
        """What the model can do (`tools`, `thinking`, …), and its largest window, tokens, where the server knows it."""
        shown = self.ask("POST", "/api/show", {"model": self.model_id}, timeout_s=timeout_s)
        lengths = [v for name, v in (shown.get("model_info") or {}).items() if name.endswith(".context_length")]
        return list(shown.get("capabilities") or []), next((v for v in lengths if isinstance(v, int)), None)

    def active_window(self, *, timeout_s: float = 10.0) -> int | None:
        """The window in force, tokens, while the model is loaded; the server tells it nowhere else."""
        loaded = self.ask("GET", "/api/ps", timeout_s=timeout_s).get("models") or []
        mine = (m for m in loaded if self.model_id in (m.get("model"), m.get("name")))
        return next((m["context_length"] for m in mine if isinstance(m.get("context_length"), int)), None)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float) -> dict[str, Any]:
        """One question to the server that is no chat, and its JSON object."""
        _ = self.client
        return runtime.run(self._get(method, path, body), timeout_s=timeout_s)

    async def _get(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = await self.client._client.request(method, path, json=body)
            return self._object(answer.status_code, answer.content, answer.headers)
        except httpx.HTTPError as exc:
            error = self._translate(exc)
            raise error from error.__cause__

    async def events(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[ModelEvent, None]:
        payload = self.payload(request, stream=stream)
        timeout = self._timeout(self.deadline(request), stream=stream)
        answer = OllamaAnswer(self.model_id, self.settings)
        try:
            async with self.client._client.stream("POST", "/api/chat", json=payload, timeout=timeout) as raw:
                if raw.status_code != 200 or not stream:
                    whole = self._object(raw.status_code, await raw.aread(), raw.headers)
                    with reading(self.model_id):
                        for event in answer.item(whole):
                            yield event
                else:
                    with reading(self.model_id):
                        async for line in lines(raw.aiter_bytes()):
                            for event in answer.item(self._line(line)):
                                yield event
            for event in answer.close():
                yield event
            response = answer.response()
        except httpx.HTTPError as exc:
            error = self._translate(exc)
            raise error from error.__cause__
        self._refuse_cut_prompt(request, response.usage.get("input_tokens"))
        yield End(response)

    def payload(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        """The request in the wire's words."""
        options: dict[str, Any] = {
            "num_ctx": self.settings.num_ctx,
            "num_predict": request.max_tokens + request.thinking_tokens,
        }
        if request.temperature is not None:
            options["temperature"] = request.temperature
        body: dict[str, Any] = {
            "model": self.model_id,
            "messages": self._messages(request),
            "stream": stream,
            "think": self._think(request.thinking_tokens),
            "options": options,
            "keep_alive": self.settings.keep_alive,
            "truncate": False,
            "shift": False,
        }
        if request.tools and request.tool_choice != "none":  # the wire has no tool_choice
            body["tools"] = [wire_tool(tool) for tool in request.tools]
        if request.response_schema is not None:
            body["format"] = dict(request.response_schema)
        return body

    def _think(self, tokens: int) -> bool | str:
        if self.model_id.startswith("gpt-oss"):  # takes levels, and cannot be told not to
            return effort(tokens) if tokens else "low"
        return tokens > 0

    def _messages(self, request: ModelRequest) -> list[dict[str, Any]]:
        system = system_text(request.system)
        head = [{"role": "system", "content": system}] if system.strip() else []
        return head + [self._message(message) for message in history(request)]

    def _message(self, message: LLMMessage) -> dict[str, Any]:
        if message.role == "tool":
            return {
                "role": "tool",
                "content": message.content,
                "tool_name": message.tool_name,
                "tool_call_id": message.tool_call_id,
            }
        wire: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            own = reusable(message, self.provider, self.model_id)
            if own and own[0].get("thinking"):
                wire["thinking"] = own[0]["thinking"]
            wire["tool_calls"] = [
                {"id": call["id"], "function": {"index": index, "name": call["name"], "arguments": call["arguments"]}}
                for index, call in enumerate(message.tool_calls)
            ]
        return wire

    def _refuse_cut_prompt(self, request: ModelRequest, counted: int | None) -> None:
        """An older server that does not know `truncate` cuts the prompt with a 200."""
        window = self.settings.num_ctx
        estimated = estimate_request(request)
        if counted is not None and estimated > 1.5 * window and counted <= window:
            raise ContextTooLong(model=self.model_id, estimated=estimated, read=counted, num_ctx=window)

    def _line(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError as exc:
            raise MalformedResponse(model=self.model_id, error="a line is no JSON") from exc
        if not isinstance(value, dict):
            raise MalformedResponse(model=self.model_id, error="a line is no object")
        return value

    def _object(self, status: int, body: bytes, headers: Any) -> dict[str, Any]:
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if status != 200:
            said = value.get("error") if isinstance(value, dict) else None
            raise provider_error(
                status=status, names=(), message=str(said or ""), headers=headers, key=self.settings.api_key,
                model=self.model_id,
            )  # fmt: skip
        if not isinstance(value, dict):
            raise MalformedResponse(model=self.model_id, error="not a JSON object")
        return value

    def _timeout(self, deadline_s: float, *, stream: bool) -> httpx.Timeout:
        read = self.settings.read_timeout_s if stream else deadline_s
        return httpx.Timeout(read, connect=self.settings.connect_timeout_s, pool=deadline_s)

    def _translate(self, exc: Exception) -> LLMError:
        error: LLMError
        if isinstance(exc, httpx.TimeoutException):
            error = LLMTimeout(model=self.model_id)
        else:
            error = LLMConnectionError(model=self.model_id, address=self.settings.base_url)
        error.__cause__ = cause_of(exc, self.settings.api_key)
        error.__suppress_context__ = True
        return error


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of an NDJSON body: only LF ends one, whatever else the text holds."""
    held = b""
    async for chunk in chunks:
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
    if held.strip():
        yield held
