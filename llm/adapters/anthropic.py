"""The Messages API of Anthropic: cache marks, adaptive thinking, blocks replayed as they came."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import httpx2
from anthropic.types import Message

from llm import runtime
from llm.adapters.anthropic_answer import MessagesAnswer
from llm.adapters.anthropic_request import PROVIDER, conversation, marked_system, marked_tools, rounds_without_thinking
from llm.adapters.base import AsyncAdapter
from llm.adapters.tls import shared_tls
from llm.adapters.wire import cause_of, effort, provider_error, reading, refuse_foreign
from llm.errors import LLMConnectionError, LLMError, LLMTimeout, MalformedResponse
from llm.types import End, ModelEvent, ModelRequest

_SDK_ERRORS = (anthropic.AnthropicError, httpx2.TransportError, httpx2.StreamError, ValueError)
_FAMILY = re.compile(r"claude-([a-z]+)-(\d+)(?:-(\d{1,2})(?!\d))?")


class AnthropicLLM(AsyncAdapter):
    """One Claude model (CAP-001 – 003, CAP-007, CAP-010)."""

    provider = PROVIDER

    def make_client(self) -> anthropic.AsyncAnthropic:
        timeout = self._timeout(self.settings.timeout_s, stream=True)
        client = anthropic.AsyncAnthropic(
            api_key=self.settings.api_key or "none",
            base_url=self.settings.base_url or "https://api.anthropic.com",
            max_retries=0,
            timeout=timeout,
            open_telemetry=False,
            http_client=anthropic.DefaultAsyncHttpxClient(
                timeout=timeout,
                follow_redirects=False,
                trust_env=False,
                verify=shared_tls(httpx2.create_ssl_context),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            ),
        )
        client._custom_headers = {}  # ANTHROPIC_CUSTOM_HEADERS has no other switch
        return client

    async def model_ids(self) -> list[str] | None:
        try:
            return [model.id async for model in self.client.models.list(limit=1000)]
        except anthropic.NotFoundError:
            return None
        except (*_SDK_ERRORS, AttributeError, TypeError) as exc:
            error = self._translate(exc)
            raise error from error.__cause__

    def count_tokens(self, request: ModelRequest, *, timeout_s: float = 10.0) -> int:
        """The provider's own count of a request's input tokens.

        Args:
            request: what would be sent.
            timeout_s: seconds.
        """
        _ = self.client
        return runtime.run(self._count(request), timeout_s=timeout_s)

    async def _count(self, request: ModelRequest) -> int:
        payload = self.payload(request)
        body = {
            name: payload[name] for name in ("model", "messages", "system", "tools", "tool_choice") if name in payload
        }
        try:
            counted = await self.client.messages.count_tokens(**body)
            if not isinstance(getattr(counted, "input_tokens", None), int):
                raise MalformedResponse(model=self.model_id, error="no token count")
            return int(counted.input_tokens)
        except _SDK_ERRORS as exc:
            error = self._translate(exc)
            raise error from error.__cause__

    async def events(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[ModelEvent, None]:
        payload = self.payload(request)
        timeout = self._timeout(self.deadline(request), stream=stream)
        answer = MessagesAnswer(self.model_id)
        try:
            raw = await self.client.messages.create(**payload, stream=stream, timeout=timeout)
            if not stream:
                if not isinstance(raw, Message) or not isinstance(raw.content, list):
                    raise MalformedResponse(model=self.model_id, error="not a message")
                with reading(self.model_id):
                    for event in answer.whole(raw):
                        yield event
            else:
                came = False
                async with raw:
                    with reading(self.model_id):
                        async for item in raw:
                            came = True
                            for event in answer.item(item):
                                yield event
                if not came:
                    refuse_foreign(self.model_id, raw.response.headers)
            with reading(self.model_id):
                response = answer.response()
            yield End(response)
        except LLMError:
            raise
        except _SDK_ERRORS as exc:
            error = self._translate(exc)
            raise error from error.__cause__

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        """The request in the wire's words; no sampling parameters, which the wire refuses."""
        body: dict[str, Any] = {
            "model": self.model_id,
            "max_tokens": request.max_tokens + request.thinking_tokens,
            "messages": conversation(request, self.model_id),
        }
        system = marked_system(request)
        if system:
            body["system"] = system
        if request.tools:
            body["tools"] = marked_tools(request)
            if request.tool_choice == "none":
                body["tool_choice"] = {"type": "none"}
            elif request.tool_choice == "required" and self._may_be_forced(request):
                body["tool_choice"] = {"type": "any"}
        output: dict[str, Any] = {}
        if request.thinking_tokens:
            thinking = self._thinking(request.thinking_tokens)
            if thinking["type"] == "adaptive":
                output["effort"] = effort(request.thinking_tokens)
            if thinking["type"] == "adaptive" or not rounds_without_thinking(body["messages"]):
                body["thinking"] = thinking
        if request.response_schema is not None:
            output["format"] = {
                "type": "json_schema",
                "schema": anthropic.transform_schema(dict(request.response_schema)),
            }
        if output:
            body["output_config"] = output
        return body

    def _thinking(self, tokens: int) -> dict[str, Any]:
        """Adaptive thinking, or the older budget for models up to 4.5 (CAP-007)."""
        version = self._version()
        if version is not None and version[1] < (4, 6):
            return {"type": "enabled", "budget_tokens": max(1024, tokens)}
        return {"type": "adaptive", "display": "summarized"}

    def _may_be_forced(self, request: ModelRequest) -> bool:
        """Newer models refuse a forced call, and so does every model that is to think."""
        version = self._version()
        if request.thinking_tokens or version is None:
            return not request.thinking_tokens
        family, number = version
        return number < ((5, 1) if family in ("fable", "mythos") else (5, 5))

    def _version(self) -> tuple[str, tuple[int, int]] | None:
        found = _FAMILY.match(self.model_id)
        return (found[1], (int(found[2]), int(found[3] or 0))) if found else None

    def _timeout(self, deadline_s: float, *, stream: bool) -> httpx2.Timeout:
        read = self.settings.read_timeout_s if stream else deadline_s
        return httpx2.Timeout(read, connect=self.settings.connect_timeout_s, pool=deadline_s)

    def _translate(self, exc: Exception) -> LLMError:
        error = self._as_ours(exc)
        error.__cause__ = cause_of(exc, self.settings.api_key)
        error.__suppress_context__ = True
        return error

    def _as_ours(self, exc: Exception) -> LLMError:
        if isinstance(exc, anthropic.APITimeoutError | httpx2.TimeoutException):
            return LLMTimeout(model=self.model_id)
        if isinstance(exc, anthropic.APIConnectionError | httpx2.TransportError):
            return LLMConnectionError(model=self.model_id, address=self.settings.base_url)
        if isinstance(exc, anthropic.APIStatusError):
            in_stream = exc.status_code == 200
            return provider_error(
                status=None if in_stream else exc.status_code,
                names=(exc.error_code, exc.type),
                message=exc.api_message or exc.message,
                headers=None if in_stream else exc.response.headers,
                key=self.settings.api_key,
                model=self.model_id,
            )
        if isinstance(exc, json.JSONDecodeError | anthropic.APIResponseValidationError | UnicodeDecodeError):
            return MalformedResponse(model=self.model_id, error=type(exc).__name__)
        return LLMError(model=self.model_id, error=type(exc).__name__)
