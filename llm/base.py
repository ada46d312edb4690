"""The reference's spellings of a model call, built on the one primitive `call` (CAP-001 – 003)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from llm.ports import CancelToken
from llm.types import LLMMessage, LLMResponse, ModelEvent, ModelRequest, SystemPrompt, ToolSchema

OnEvent = Callable[[ModelEvent], None]
_CALL_OPTIONS = {"on_event", "cancel"}
_REQUEST_OPTIONS = {field.name for field in fields(ModelRequest)} - {"messages", "system", "max_tokens", "temperature"}


class ModelPort(ABC):
    """Base of everything that is a `BaseLLM`: implement `call` and `stream_request`, the rest follows."""

    model_id: str
    provider: str

    @abstractmethod
    def call(
        self, request: ModelRequest, *, on_event: OnEvent | None = None, cancel: CancelToken | None = None
    ) -> LLMResponse:
        """Make one call and wait for its whole answer.

        Args:
            request: everything the model is told.
            on_event: gets each delta as it arrives, in the caller's thread; None asks for an unstreamed answer.
            cancel: ends the call at once, from any thread.

        Raises:
            LLMError: always one of ours; `LLMCancelled` after a cancel, with what had arrived.
        """

    @abstractmethod
    def stream_request(self, request: ModelRequest, *, cancel: CancelToken | None = None) -> Iterator[str]:
        """The answer's text as it arrives; closing the iterator ends the call."""

    def complete(
        self,
        messages: Sequence[LLMMessage],
        system: SystemPrompt = "",
        max_tokens: int = 1024,
        temperature: float | None = None,
        **options: Any,
    ) -> LLMResponse:
        """One answer to `messages` (CAP-001); further fields of `ModelRequest`, `on_event` and `cancel` are options."""
        request, call_options = _split(messages, system, max_tokens, temperature, options)
        return self.call(request, **call_options)

    def complete_with_tools(
        self,
        messages: Sequence[LLMMessage],
        system: SystemPrompt,
        *,
        tools: Sequence[ToolSchema],
        max_tokens: int = 4096,
        temperature: float | None = None,
        **options: Any,
    ) -> LLMResponse:
        """One answer that may call `tools` (CAP-002)."""
        request, call_options = _split(messages, system, max_tokens, temperature, {**options, "tools": tuple(tools)})
        return self.call(request, **call_options)

    def stream(
        self, messages: Sequence[LLMMessage], system: SystemPrompt = "", *, max_tokens: int = 4096, **options: Any
    ) -> Iterator[str]:
        """The answer's text, piece by piece (CAP-003)."""
        request, call_options = _split(messages, system, max_tokens, options.pop("temperature", None), options)
        if "on_event" in call_options:
            raise TypeError("stream() yields the text itself; on_event belongs to call()")
        return self.stream_request(request, **call_options)


def _split(
    messages: Sequence[LLMMessage],
    system: SystemPrompt,
    max_tokens: int,
    temperature: float | None,
    options: dict[str, Any],
) -> tuple[ModelRequest, dict[str, Any]]:
    unknown = options.keys() - _CALL_OPTIONS - _REQUEST_OPTIONS
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    call_options = {name: value for name, value in options.items() if name in _CALL_OPTIONS}
    request_options = {name: value for name, value in options.items() if name in _REQUEST_OPTIONS}
    request = ModelRequest(
        messages=tuple(messages), system=system, max_tokens=max_tokens, temperature=temperature, **request_options
    )
    return request, call_options
