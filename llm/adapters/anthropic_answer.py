"""A message of Anthropic's wire, whole or in events, as the port's events and response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anthropic.types import Message

from llm.adapters.anthropic_request import PROVIDER
from llm.adapters.wire import counted, text_of
from llm.arguments import tool_call
from llm.errors import StreamCut
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

_STOP: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "pause_turn": "pause",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_full",
}


class MessagesAnswer:
    """Gathers one answer by block index, so that overlapping blocks come out right."""

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id
        self._model = ""
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, list[str]] = {}
        self._calls: dict[int, int] = {}
        self._stop: str | None = None
        self._ended = False
        self._raw_usage: dict[str, Any] = {}

    def whole(self, raw: Message) -> Iterator[ModelEvent]:
        """The events of an unstreamed answer."""
        self._model = text_of(raw.model) or self._model_id
        self._stop = text_of(raw.stop_reason) or None
        self._ended = True
        for index, block in enumerate(raw.content):
            yield from self._open(index, _dump(block))
        yield from self._count(raw.usage)

    def item(self, event: Any) -> Iterator[ModelEvent]:
        """The events of one stream event."""
        kind = event.type
        if kind == "content_block_delta":
            yield from self._delta(event.index, event.delta)
        elif kind == "content_block_start":
            yield from self._open(event.index, _dump(event.content_block))
        elif kind == "message_start":
            self._model = text_of(event.message.model) or self._model_id
            yield from self._count(event.message.usage)
        elif kind == "message_delta":
            self._stop = text_of(event.delta.stop_reason) or self._stop
            yield from self._count(event.usage)
        elif kind == "message_stop":
            self._ended = True

    def response(self) -> LLMResponse:
        """The whole answer.

        Raises:
            StreamCut: its beginning or its end never came.
        """
        if not self._ended or not self._model or self._stop is None:
            raise StreamCut(model=self._model_id)
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        stop = _STOP.get(self._stop, "end_turn")
        calls = [
            tool_call(self._blocks[i]["id"], self._blocks[i]["name"], self._arguments(i)) for i in sorted(self._calls)
        ]
        if stop == "tool_use" and not calls:
            stop = "end_turn"
        called = stop == "tool_use"
        return LLMResponse(
            content="".join(block.get("text", "") for block in blocks if block.get("type") == "text"),
            tool_calls=calls if called else None,
            stop_reason=stop,
            thinking="".join(block.get("thinking", "") for block in blocks if block.get("type") == "thinking"),
            model=self._model,
            usage=self._usage(),
            blocks=self._own_blocks() if called or stop in ("end_turn", "stop_sequence", "pause") else None,
        )

    def _own_blocks(self) -> ProviderBlocks | None:
        items = []
        calls = {index: self._blocks[index] for index in self._calls}
        for index in sorted(self._blocks):
            block = self._blocks[index]
            if index in calls and self._stop != "tool_use":
                return None
            if index in calls:
                block = {**block, "input": tool_call(block["id"], block["name"], self._arguments(index))["arguments"]}
            items.append({name: value for name, value in block.items() if value is not None})
        return ProviderBlocks(provider=PROVIDER, model=self._model_id, items=items) if items else None

    def _arguments(self, index: int) -> object:
        written = "".join(self._json.get(index, []))
        return written if written else self._blocks[index].get("input")

    def _open(self, index: int, block: dict[str, Any]) -> Iterator[ModelEvent]:
        self._blocks[index] = block
        kind = block.get("type")
        if kind == "text" and text_of(block.get("text")):
            yield TextDelta(block["text"])
        elif kind == "thinking" and text_of(block.get("thinking")):
            yield ThinkingDelta(block["thinking"])
        elif kind == "tool_use":
            self._calls[index] = len(self._calls)
            yield ToolCallDelta(self._calls[index], id=text_of(block["id"]), name=text_of(block["name"]))

    def _delta(self, index: int, delta: Any) -> Iterator[ModelEvent]:
        block = self._blocks.setdefault(index, {"type": "unknown"})
        if delta.type == "text_delta":
            block["text"] = block.get("text", "") + text_of(delta.text)
            yield TextDelta(text_of(delta.text))
        elif delta.type == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + text_of(delta.thinking)
            yield ThinkingDelta(text_of(delta.thinking))
        elif delta.type == "signature_delta":
            block["signature"] = delta.signature
        elif delta.type == "input_json_delta":
            self._json.setdefault(index, []).append(text_of(delta.partial_json))
            if index in self._calls:
                yield ToolCallDelta(self._calls[index], arguments=text_of(delta.partial_json))

    def _count(self, usage: Any) -> Iterator[ModelEvent]:
        """Usage is cumulative: what comes later replaces what came before."""
        if usage is None:
            return
        self._raw_usage |= {name: value for name, value in usage.to_dict(warnings=False).items() if value is not None}
        if self._usage():
            yield UsageDelta(self._usage())

    def _usage(self) -> Usage:
        raw = self._raw_usage
        parts = [raw.get(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")]
        return counted(
            input_tokens=None if parts[0] is None else sum(part for part in parts if isinstance(part, int)),
            output_tokens=raw.get("output_tokens"),
            cache_read_tokens=parts[1],
            cache_write_tokens=parts[2],
            reasoning_tokens=(raw.get("output_tokens_details") or {}).get("thinking_tokens"),
        )


def _dump(block: Any) -> dict[str, Any]:
    fields: dict[str, Any] = block.to_dict(warnings=False) if hasattr(block, "to_dict") else dict(block)
    return {name: value for name, value in fields.items() if value is not None}
