"""Chat Completions: everything that is compatible with OpenAI's wire."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from llm.adapters import openai_client
from llm.adapters.base import AsyncAdapter
from llm.adapters.chat_answer import ChatAnswer
from llm.adapters.wire import effort, history, reading, refuse_foreign, reusable, system_text
from llm.errors import LLMError, MalformedResponse
from llm.types import End, LLMMessage, ModelEvent, ModelRequest, ToolSchema

# What a server may say it does not know, and what is sent in its place.
_REPLACEMENTS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_OPTIONAL = ("reasoning_effort", "stream_options", "temperature", "response_format")


class OpenAIChatLLM(AsyncAdapter):
    """One model behind an OpenAI-compatible server (CAP-001 – 003)."""

    provider = "openai"
    wire = "openai_chat"

    def make_client(self) -> openai.AsyncOpenAI:
        return openai_client.make_client(self.settings)

    async def model_ids(self) -> list[str] | None:
        try:
            page = await self.client.models.list()
            return [model.id for model in page.data]
        except openai.NotFoundError:
            return None
        except (*openai_client.SDK_ERRORS, AttributeError, TypeError) as exc:
            error = openai_client.translate(exc, self.settings, model=self.model_id)
            raise error from error.__cause__

    async def events(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[ModelEvent, None]:
        payload = self.payload(request, stream=stream)
        timeout = openai_client.timeout(self.settings, self.deadline(request), stream=stream)
        try:
            raw = await self._create(payload, timeout)
            answer = ChatAnswer(self.model_id, self.wire, self.settings)
            if not stream:
                if not isinstance(raw, ChatCompletion):
                    raise MalformedResponse(model=self.model_id, error="not a chat completion")
                with reading(self.model_id):
                    for event in answer.whole(raw):
                        yield event
            else:
                came = False
                async with raw:
                    with reading(self.model_id):
                        async for chunk in raw:
                            came = True
                            if not isinstance(chunk, ChatCompletionChunk):
                                raise MalformedResponse(model=self.model_id, error="not a chunk of a chat completion")
                            for event in answer.chunk(chunk):
                                yield event
                if not came:
                    refuse_foreign(self.model_id, raw.response.headers)
            for event in answer.close():
                yield event
            yield End(answer.response())
        except LLMError:
            raise
        except openai_client.SDK_ERRORS as exc:
            error = openai_client.translate(exc, self.settings, model=self.model_id)
            raise error from error.__cause__

    async def _create(self, payload: dict[str, Any], timeout: Any) -> Any:
        """Ask, and ask again without the parameters that this server says it does not support."""
        for _attempt in range(len(_OPTIONAL) + 2):
            try:
                return await self.client.chat.completions.create(**payload, timeout=timeout)
            except openai.BadRequestError as exc:
                if exc.code not in ("unsupported_parameter", "unsupported_value"):
                    raise
                name = str(exc.param)
                if name in _REPLACEMENTS and name in payload:
                    payload[_REPLACEMENTS[name]] = payload.pop(name)
                elif name in _OPTIONAL and name in payload:
                    del payload[name]
                else:
                    raise
        raise AssertionError("each round removes a parameter")

    def payload(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        """The request in the wire's words."""
        body: dict[str, Any] = {
            "model": self.model_id,
            "messages": self._messages(request),
            "max_tokens": request.max_tokens,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.tools:
            body["tools"] = [wire_tool(tool) for tool in request.tools]
            if request.tool_choice != "auto":
                body["tool_choice"] = request.tool_choice
        if request.thinking_tokens:
            body["reasoning_effort"] = effort(request.thinking_tokens)
        if request.response_schema is not None:
            schema = dict(request.response_schema)
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return body

    def _messages(self, request: ModelRequest) -> list[dict[str, Any]]:
        system = system_text(request.system)
        head = [{"role": "system", "content": system}] if system.strip() else []
        return head + [self._message(message) for message in history(request)]

    def _message(self, message: LLMMessage) -> dict[str, Any]:
        if message.role == "tool":
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
        if message.role != "assistant" or not message.tool_calls:
            return {"role": message.role, "content": message.content}
        own = reusable(message, self.wire, self.model_id)
        written = [call["function"]["arguments"] for call in own[0]["tool_calls"]] if own else []
        calls = []
        for index, call in enumerate(message.tool_calls):
            same = len(written) == len(message.tool_calls) and "arguments_error" not in call
            arguments = written[index] if same else json.dumps(call["arguments"], ensure_ascii=False)
            function = {"name": call["name"], "arguments": arguments.strip() or "{}"}
            calls.append({"id": call["id"], "type": "function", "function": function})
        return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def wire_tool(tool: ToolSchema) -> dict[str, Any]:
    """A canonical schema in the chat wire's words."""
    function = {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}
