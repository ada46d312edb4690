"""A message of Anthropic's wire, whole or in events, as the port's events and response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anthropic.types import Message

from llm.adapters.anthropic_request import PROVIDER
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
        self._model = raw.model or self._model_id
        self._stop = raw.stop_reason
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
            self._model = event.message.model or self._model_id
            yield from self._count(event.message.usage)
        elif kind == "message_delta":
            self._stop = event.delta.stop_reason or self._stop
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
        if kind == "text" and block.get("text"):
            yield TextDelta(block["text"])
        elif kind == "thinking" and block.get("thinking"):
            yield ThinkingDelta(block["thinking"])
        elif kind == "tool_use":
            self._calls[index] = len(self._calls)
            yield ToolCallDelta(self._calls[index], id=block["id"], name=block["name"])

    def _delta(self, index: int, delta: Any) -> Iterator[ModelEvent]:
        block = self._blocks.setdefault(index, {"type": "unknown"})
        if delta.type == "text_delta":
            block["text"] = block.get("text", "") + delta.text
            yield TextDelta(delta.text)
        elif delta.type == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta.thinking
            yield ThinkingDelta(delta.thinking)
        elif delta.type == "signature_delta":
            block["signature"] = delta.signature
        elif delta.type == "input_json_delta":
            self._json.setdefault(index, []).append(delta.partial_json)
            if index in self._calls:
                yield ToolCallDelta(self._calls[index], arguments=delta.partial_json)

    def _count(self, usage: Any) -> Iterator[ModelEvent]:
        """Usage is cumulative: what comes later replaces what came before."""
        if usage is None:
            return
        self._raw_usage |= {name: value for name, value in usage.to_dict().items() if value is not None}
        if self._usage():
            yield UsageDelta(self._usage())

    def _usage(self) -> Usage:
        raw = self._raw_usage
        usage = Usage()
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        if "input_tokens" in raw:
            usage["input_tokens"] = sum(raw.get(part, 0) for part in parts)
        if "output_tokens" in raw:
            usage["output_tokens"] = raw["output_tokens"]
        if "cache_read_input_tokens" in raw:
            usage["cache_read_tokens"] = raw["cache_read_input_tokens"]
        if "cache_creation_input_tokens" in raw:
            usage["cache_write_tokens"] = raw["cache_creation_input_tokens"]
        thinking = (raw.get("output_tokens_details") or {}).get("thinking_tokens")
        if thinking is not None:
            usage["reasoning_tokens"] = thinking
        return usage


def _dump(block: Any) -> dict[str, Any]:
    fields: dict[str, Any] = block.to_dict() if hasattr(block, "to_dict") else dict(block)
    return {name: value for name, value in fields.items() if value is not None}
