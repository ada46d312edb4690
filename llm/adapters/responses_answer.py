"""A response of OpenAI's Responses wire, whole or in events, as the port's events and response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai.types.responses import Response

from llm.adapters.openai_client import error_object
from llm.adapters.wire import counted, text_of
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
    ToolCallDelta,
    Usage,
    UsageDelta,
)


class ResponsesAnswer:
    """Gathers one answer from its output items."""

    def __init__(self, model_id: str, wire: str, settings: LLMSettings) -> None:
        self._model_id = model_id
        self._wire = wire
        self._settings = settings
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refused = False
        self._summary: tuple[int, int] | None = None
        self._calls: dict[int, int] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._final: Response | None = None
        self._usage = Usage()

    def whole(self, raw: Response) -> Iterator[ModelEvent]:
        """The events of an unstreamed answer."""
        self._check(raw)
        for index, item in enumerate(raw.output):
            fields: dict[str, Any] = item.to_dict(warnings=False)
            self._items[index] = fields
            kind = fields.get("type")
            if kind == "reasoning":
                for at, part in enumerate(fields.get("summary") or []):
                    yield from self._think(index, at, text_of(part.get("text")))
            elif kind == "message":
                for part in fields.get("content") or []:
                    yield from self._part(part)
            elif kind == "function_call":
                yield self._call(index, fields, str(fields.get("arguments") or ""))
        yield from self._end(raw)

    def item(self, event: Any) -> Iterator[ModelEvent]:
        """The events of one stream event."""
        kind = event.type
        if kind == "response.output_text.delta":
            self._text.append(text_of(event.delta))
            yield TextDelta(event.delta)
        elif kind == "response.refusal.delta":
            self._refused = True
            self._text.append(text_of(event.delta))
            yield TextDelta(event.delta)
        elif kind == "response.reasoning_summary_text.delta":
            yield from self._think(event.output_index, event.summary_index, text_of(event.delta))
        elif kind == "response.output_item.added":
            fields = event.item.to_dict(warnings=False)
            if fields.get("type") == "function_call":
                yield self._call(event.output_index, fields, str(fields.get("arguments") or ""))
        elif kind == "response.function_call_arguments.delta":
            yield ToolCallDelta(self._calls.get(event.output_index, 0), arguments=text_of(event.delta))
        elif kind == "response.output_item.done":
            self._items[event.output_index] = event.item.to_dict(warnings=False)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._check(event.response)
            for index, item in enumerate(event.response.output or []):
                self._items[index] = item.to_dict(warnings=False)
            yield from self._end(event.response)
        elif kind == "error":
            body = {"code": getattr(event, "code", None), "message": getattr(event, "message", "")}
            raise error_object(body, self._settings, model=self._model_id)

    def response(self) -> LLMResponse:
        """The whole answer.

        Raises:
            StreamCut: its end never came.
        """
        if self._final is None:
            raise StreamCut(model=self._model_id)
        items = [self._items[index] for index in sorted(self._items)]
        made = [item for item in items if item.get("type") == "function_call"]
        stop = self._stop()
        if made and stop == "end_turn":
            stop = "tool_use"
        called = stop == "tool_use"
        calls = [tool_call(text_of(i.get("call_id")), text_of(i["name"]), i.get("arguments")) for i in made]
        own = ProviderBlocks(provider=self._wire, model=self._model_id, items=items)
        return LLMResponse(
            content="".join(self._text),
            tool_calls=calls if called else None,
            stop_reason=stop,
            thinking="".join(self._thinking),
            model=text_of(self._final.model) or self._model_id,
            usage=self._usage,
            blocks=own if items and stop in ("tool_use", "end_turn") else None,
        )

    def _check(self, raw: Response) -> None:
        if raw.status == "failed" or (raw.error is not None and raw.status != "completed"):
            error = raw.error.to_dict(warnings=False) if raw.error is not None else {"code": "server_error"}
            raise error_object(error, self._settings, model=self._model_id)
        if raw.status not in ("completed", "incomplete"):
            raise MalformedResponse(model=self._model_id, error=f"status {raw.status}")

    def _stop(self) -> StopReason:
        details = self._final.incomplete_details if self._final is not None else None
        if details is not None and details.reason == "content_filter":
            return "refusal"
        if self._final is not None and self._final.status == "incomplete":
            return "max_tokens"
        return "refusal" if self._refused else "end_turn"

    def _part(self, part: dict[str, Any]) -> Iterator[ModelEvent]:
        refusal = part.get("type") == "refusal"
        words = text_of(part.get("refusal" if refusal else "text"))
        self._refused = self._refused or refusal
        if words:
            self._text.append(words)
            yield TextDelta(words)

    def _think(self, output: int, part: int, words: str) -> Iterator[ModelEvent]:
        if self._summary not in (None, (output, part)):
            words = "\n\n" + words
        self._summary = (output, part)
        if words:
            self._thinking.append(words)
            yield ThinkingDelta(words)

    def _call(self, output: int, item: dict[str, Any], arguments: str) -> ToolCallDelta:
        self._calls[output] = len(self._calls)
        call_id, name = text_of(item.get("call_id")), text_of(item.get("name"))
        return ToolCallDelta(self._calls[output], id=call_id, name=name, arguments=arguments)

    def _end(self, raw: Response) -> Iterator[ModelEvent]:
        self._final = raw
        usage = raw.usage
        if usage is None:
            return
        details = usage.input_tokens_details
        self._usage = counted(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=getattr(details, "cached_tokens", None),
            cache_write_tokens=getattr(details, "cache_write_tokens", None),
            reasoning_tokens=getattr(usage.output_tokens_details, "reasoning_tokens", None),
        )
        yield UsageDelta(self._usage)
