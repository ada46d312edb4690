"""The Responses API of OpenAI itself; nothing is stored there, reasoning items are sent back whole."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
from openai.types.responses import Response

from llm.adapters import openai_client
from llm.adapters.openai_chat import OpenAIChatLLM
from llm.adapters.responses_answer import ResponsesAnswer
from llm.adapters.wire import effort, history, reading, refuse_foreign, reusable, system_text
from llm.errors import LLMError, MalformedResponse
from llm.types import End, LLMMessage, ModelEvent, ModelRequest, ToolCall

_OPTIONAL = {"reasoning.effort": "reasoning", "reasoning.summary": "reasoning", "temperature": "temperature",
             "include": "include", "text.format": "text"}  # fmt: skip


class OpenAIResponsesLLM(OpenAIChatLLM):
    """One of OpenAI's own models (CAP-001 – 003)."""

    wire = "openai_responses"

    async def events(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[ModelEvent, None]:
        payload = self.payload(request, stream=stream)
        timeout = openai_client.timeout(self.settings, self.deadline(request), stream=stream)
        answer = ResponsesAnswer(self.model_id, self.wire, self.settings)
        try:
            raw = await self._create(payload, timeout)
            if not stream:
                if not isinstance(raw, Response) or not isinstance(raw.output, list):
                    raise MalformedResponse(model=self.model_id, error="not a response")
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
        except openai_client.SDK_ERRORS as exc:
            error = openai_client.translate(exc, self.settings, model=self.model_id)
            raise error from error.__cause__

    async def _create(self, payload: dict[str, Any], timeout: Any) -> Any:
        for _attempt in range(len(_OPTIONAL) + 1):
            try:
                return await self.client.responses.create(**payload, timeout=timeout)
            except openai.BadRequestError as exc:
                name = _OPTIONAL.get(str(exc.param))
                if exc.code not in ("unsupported_parameter", "unsupported_value") or name not in payload:
                    raise
                del payload[name]
        raise AssertionError("each round removes a parameter")

    def payload(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        """The request in the wire's words."""
        body: dict[str, Any] = {
            "model": self.model_id,
            "input": [item for message in history(request) for item in self._items(message)],
            "max_output_tokens": request.max_tokens + request.thinking_tokens,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "stream": stream,
        }
        system = system_text(request.system)
        if system.strip():
            body["instructions"] = system
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["input_schema"],
                    "strict": False,
                }
                for tool in request.tools
            ]
            if request.tool_choice != "auto":
                body["tool_choice"] = request.tool_choice
        if request.thinking_tokens:
            body["reasoning"] = {"effort": effort(request.thinking_tokens), "summary": "auto"}
        elif request.temperature is not None:
            body["temperature"] = request.temperature
        if request.response_schema is not None:
            schema = dict(request.response_schema)
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": False}}
        return body

    def _items(self, message: LLMMessage) -> list[dict[str, Any]]:
        if message.role == "tool":
            return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
        if message.role != "assistant":
            return [{"role": message.role, "content": message.content}]
        own = _own(reusable(message, self.wire, self.model_id), message.tool_calls)
        if own:
            return own
        text = [{"role": "assistant", "content": message.content}] if message.content.strip() else []
        return text + [
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["name"],
                "arguments": json.dumps(call["arguments"], ensure_ascii=False),
            }
            for call in message.tool_calls
        ]


def _own(items: list[dict[str, Any]], calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
    """The reply's own items, with our call ids where they differ; none when its calls are not the message's."""
    made = [item for item in items if item.get("type") == "function_call"]
    if [item.get("name") for item in made] != [call["name"] for call in calls]:
        return []
    left = iter(calls)
    out = []
    for item in items:
        if item.get("type") == "function_call":
            call = next(left)
            item = {**item, "call_id": call["id"]}
            if "arguments_error" in call or not str(item.get("arguments", "")).strip():
                item["arguments"] = json.dumps(call["arguments"])
        out.append(item)
    return out
