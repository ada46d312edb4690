"""An answer of Ollama's chat wire, whole or in lines, as the port's events and response."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llm.adapters.wire import ThinkingTags, counted, provider_error, text_of
from llm.arguments import tool_call
from llm.errors import MalformedResponse, StreamCut
from llm.settings import LLMSettings
from llm.types import (
    LLMResponse,
    ModelEvent,
    ProviderBlocks,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    UsageDelta,
)


class OllamaAnswer:
    """Gathers one answer; an unstreamed one is a single line."""

    def __init__(self, model_id: str, settings: LLMSettings) -> None:
        self._model_id = model_id
        self._model = model_id
        self._settings = settings
        self._tags = ThinkingTags()
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[ToolCall] = []
        self._done: str | None = None
        self._usage = Usage()

    def item(self, line: dict[str, Any]) -> Iterator[ModelEvent]:
        """The events of one line."""
        if line.get("error"):
            raise provider_error(
                status=None, names=(), message=str(line["error"]), key=self._settings.api_key, model=self._model_id
            )
        message = line.get("message")
        if not isinstance(message, dict):
            raise MalformedResponse(model=self._model_id, error="no message")
        self._model = str(line.get("model") or self._model)
        if message.get("thinking"):
            yield from self._parts([("thinking", text_of(message["thinking"]))])
        if message.get("content"):
            yield from self._parts(self._tags.feed(text_of(message["content"])))
        for raw in message.get("tool_calls") or []:
            yield self._call(raw)
        if line.get("done"):
            yield from self._end(line)

    def close(self) -> Iterator[ModelEvent]:
        """What the end of the answer sets free."""
        yield from self._parts(self._tags.close())

    def response(self) -> LLMResponse:
        """The whole answer.

        Raises:
            StreamCut: no line said that it was done.
        """
        if self._done is None:
            raise StreamCut(model=self._model_id)
        stop: StopReason = "max_tokens" if self._done == "length" else "end_turn"
        if self._calls and stop == "end_turn":
            stop = "tool_use"
        called, thinking = stop == "tool_use", "".join(self._thinking)
        own = ProviderBlocks(provider="ollama", model=self._model_id, items=[{"thinking": thinking}])
        return LLMResponse(
            content="".join(self._text),
            tool_calls=self._calls if called else None,
            stop_reason=stop,
            thinking=thinking,
            model=self._model,
            usage=self._usage,
            blocks=own if called and thinking else None,
        )

    def _call(self, raw: dict[str, Any]) -> ToolCallDelta:
        function = raw.get("function") or {}
        if not isinstance(function, dict) or not function.get("name"):
            raise MalformedResponse(model=self._model_id, error="a call without a name")
        call = tool_call(text_of(raw.get("id")), text_of(function["name"]), function.get("arguments"))
        self._calls.append(call)
        written = function.get("arguments")
        text = written if isinstance(written, str) else json.dumps(call["arguments"], ensure_ascii=False)
        return ToolCallDelta(len(self._calls) - 1, id=call["id"], name=call["name"], arguments=text)

    def _parts(self, parts: list[tuple[str, str]]) -> Iterator[ModelEvent]:
        for kind, words in parts:
            if kind == "text":
                self._text.append(words)
                yield TextDelta(words)
            else:
                self._thinking.append(words)
                yield ThinkingDelta(words)

    def _end(self, line: dict[str, Any]) -> Iterator[ModelEvent]:
        self._done = str(line.get("done_reason") or "stop")
        self._usage = counted(input_tokens=line.get("prompt_eval_count"), output_tokens=line.get("eval_count"))
        if self._usage:
            yield UsageDelta(self._usage)
