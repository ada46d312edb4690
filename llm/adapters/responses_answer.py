"""A response of OpenAI's Responses wire, whole or in events, as the port's events and response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai.types.responses import Response

from llm.adapters.openai_client import error_object
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
            fields: dict[str, Any] = item.to_dict()
            self._items[index] = fields
            kind = fields.get("type")
            if kind == "reasoning":
                for at, part in enumerate(fields.get("summary") or []):
                    yield from self._think(index, at, part.get("text", ""))
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
            self._text.append(event.delta)
            yield TextDelta(event.delta)
        elif kind == "response.refusal.delta":
            self._refused = True
            self._text.append(event.delta)
            yield TextDelta(event.delta)
        elif kind == "response.reasoning_summary_text.delta":
            yield from self._think(event.output_index, event.summary_index, event.delta)
        elif kind == "response.output_item.added":
            fields = event.item.to_dict()
            if fields.get("type") == "function_call":
                yield self._call(event.output_index, fields, str(fields.get("arguments") or ""))
        elif kind == "response.function_call_arguments.delta":
            yield ToolCallDelta(self._calls.get(event.output_index, 0), arguments=event.delta)
        elif kind == "response.output_item.done":
            self._items[event.output_index] = event.item.to_dict()
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._check(event.response)
            for index, item in enumerate(event.response.output or []):
                self._items[index] = item.to_dict()
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
        calls = [tool_call(str(i.get("call_id") or ""), str(i.get("name")), i.get("arguments")) for i in made]
        own = ProviderBlocks(provider=self._wire, model=self._model_id, items=items)
        return LLMResponse(
            content="".join(self._text),
            tool_calls=calls if called else None,
            stop_reason=stop,
            thinking="".join(self._thinking),
            model=self._final.model or self._model_id,
            usage=self._usage,
            blocks=own if items and stop in ("tool_use", "end_turn") else None,
        )

    def _check(self, raw: Response) -> None:
        if raw.status == "failed" or (raw.error is not None and raw.status != "completed"):
            error = raw.error.to_dict() if raw.error is not None else {"code": "server_error"}
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
        words = str(part.get("refusal" if refusal else "text") or "")
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
        call_id, name = str(item.get("call_id") or ""), str(item.get("name") or "")
        return ToolCallDelta(self._calls[output], id=call_id, name=name, arguments=arguments)

    def _end(self, raw: Response) -> Iterator[ModelEvent]:
        self._final = raw
        usage = raw.usage
        if usage is None:
            return
        self._usage = Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        for key, details, name in (
            ("cache_read_tokens", usage.input_tokens_details, "cached_tokens"),
            ("cache_write_tokens", usage.input_tokens_details, "cache_write_tokens"),
            ("reasoning_tokens", usage.output_tokens_details, "reasoning_tokens"),
        ):
            value = getattr(details, name, None)
            if isinstance(value, int):
                self._usage[key] = value  # type: ignore[literal-required]
        yield UsageDelta(self._usage)
