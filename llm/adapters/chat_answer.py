"""A chat completion, whole or in chunks, as the port's events and response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion_usage import CompletionUsage

from llm.adapters.openai_client import error_object
from llm.adapters.wire import ThinkingTags, counted, text_of
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
    Withdrawn,
)

_STOP: dict[str, StopReason] = {"length": "max_tokens", "content_filter": "refusal"}


class ChatAnswer:
    """Gathers one answer; the same parts make the same response, streamed or not."""

    def __init__(self, model_id: str, wire: str, settings: LLMSettings) -> None:
        self._model_id = model_id
        self._model = model_id
        self._wire = wire
        self._settings = settings
        self._tags = ThinkingTags()
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[dict[str, str]] = []
        self._by_index: dict[int, int] = {}
        self._finish: str | None = None
        self._whole = False
        self._usage = Usage()

    def whole(self, raw: ChatCompletion) -> Iterator[ModelEvent]:
        """The events of an unstreamed answer."""
        if not raw.choices:
            error = (raw.model_extra or {}).get("error")
            if error:
                raise error_object(error, self._settings, model=self._model_id)
            raise MalformedResponse(model=self._model_id, error="no choices")
        message = raw.choices[0].message
        if message is None:
            raise MalformedResponse(model=self._model_id, error="no message")
        self._model = text_of(raw.model) or self._model_id
        self._whole = True
        self._finish = text_of(raw.choices[0].finish_reason)
        yield from self._say(message.model_extra, message.content, message.refusal)
        for index, call in enumerate(message.tool_calls or []):
            function = getattr(call, "function", None)
            name, arguments = (function.name, function.arguments) if function else (getattr(call, "type", ""), "")
            yield self._fragment(index, text_of(call.id), text_of(name), arguments)
        yield from self._count(raw.usage)

    def chunk(self, raw: ChatCompletionChunk) -> Iterator[ModelEvent]:
        """The events of one chunk."""
        if raw.model:
            self._model = text_of(raw.model)
        for choice in raw.choices or []:
            delta = choice.delta
            if delta is not None:
                if delta.content or delta.refusal or delta.model_extra:
                    yield from self._say(delta.model_extra, delta.content, delta.refusal)
                for call in delta.tool_calls or []:
                    function = call.function
                    name = text_of(function.name if function else None)
                    arguments = text_of(function.arguments if function else None)
                    yield self._fragment(call.index or 0, text_of(call.id), name, arguments)
            if choice.finish_reason:
                self._finish = text_of(choice.finish_reason)
        if raw.usage is not None:
            yield from self._count(raw.usage)

    def close(self) -> Iterator[ModelEvent]:
        """What the end of the answer sets free.

        Raises:
            StreamCut: no chunk said how it finished.
        """
        yield from self._parts(self._tags.close())
        if self._finish is None and not self._whole:
            raise StreamCut(model=self._model_id)
        text = "".join(self._text)
        if "</think>" in text and not self._thinking:  # the model's template had opened the tag for it
            thinking, _, answer = text.partition("</think>")
            if "<think>" not in thinking:
                self._text, self._thinking = [answer.lstrip()], [thinking]
                yield Withdrawn("it was reasoning")
                yield ThinkingDelta(thinking)
                yield TextDelta(answer.lstrip())

    def response(self) -> LLMResponse:
        """The whole answer."""
        content = "".join(self._text)
        stop = _STOP.get(self._finish or "", "end_turn")
        if self._refusal and stop != "max_tokens":
            stop = "refusal"
        calls = []
        if self._calls and stop == "end_turn":
            stop = "tool_use"
            calls = [tool_call(call["id"], call["name"], call["arguments"]) for call in self._calls]
        return LLMResponse(
            content=content,
            tool_calls=calls or None,
            stop_reason=stop,
            thinking="".join(self._thinking),
            model=self._model,
            usage=self._usage,
            blocks=self._blocks() if calls else None,
        )

    def _blocks(self) -> ProviderBlocks:
        calls = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in self._calls
        ]
        item = {"role": "assistant", "content": "".join(self._text) or None, "tool_calls": calls}
        return ProviderBlocks(provider=self._wire, model=self._model_id, items=[item])

    def _say(self, extra: dict[str, Any] | None, content: object, refusal: str | None) -> Iterator[ModelEvent]:
        reasoning = (extra or {}).get("reasoning_content") or (extra or {}).get("reasoning")
        if isinstance(reasoning, str):
            yield from self._parts([("thinking", reasoning)])
        if isinstance(content, str) and content:
            yield from self._parts(self._tags.feed(content))
        elif isinstance(content, list):  # some servers answer in parts
            yield from self._parts([part for item in content for part in _part(item)])
        if refusal:
            self._refusal.append(text_of(refusal))
            yield from self._parts([("text", refusal)])

    def _parts(self, parts: list[tuple[str, str]]) -> Iterator[ModelEvent]:
        for kind, words in parts:
            if kind == "text":
                self._text.append(words)
                yield TextDelta(words)
            else:
                self._thinking.append(words)
                yield ThinkingDelta(words)

    def _fragment(self, index: int, call_id: str, name: str, arguments: object) -> ToolCallDelta:
        at = self._by_index.get(index)
        # Some compatible servers repeat index 0: a new id begins a new call.
        if at is None or (call_id and self._calls[at]["id"] and call_id != self._calls[at]["id"]):
            at = self._by_index[index] = len(self._calls)
            self._calls.append({"id": "", "name": "", "arguments": ""})
        call = self._calls[at]
        text = arguments if isinstance(arguments, str) else ""
        call["id"] = call["id"] or call_id
        call["name"] += name if not call["name"] else ""
        call["arguments"] += text
        return ToolCallDelta(at, id=call_id, name=name, arguments=text)

    def _count(self, usage: CompletionUsage | None) -> Iterator[ModelEvent]:
        if usage is None or usage.prompt_tokens is None:
            return
        prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
        self._usage = counted(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens or 0,
            cache_read_tokens=getattr(prompt, "cached_tokens", None),
            cache_write_tokens=getattr(prompt, "cache_write_tokens", None),
            reasoning_tokens=getattr(completion, "reasoning_tokens", None),
        )
        yield UsageDelta(self._usage)


def _part(item: Any) -> list[tuple[str, str]]:
    """A part of a content list, as (`thinking` or `text`, words)."""
    if not isinstance(item, dict):
        return []
    kind = "thinking" if item.get("type") in ("thinking", "reasoning") else "text"
    words = item.get(kind) or item.get("text")
    if isinstance(words, list):
        return [(kind, inner) for one in words for _kind, inner in _part(one)]
    return [(kind, words)] if isinstance(words, str) and words else []
