"""The sync port on an adapter's async event stream."""

from __future__ import annotations

import logging
import weakref
from abc import abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from llm import runtime
from llm.arguments import MAX_DEPTH, storable, unstorable
from llm.base import ModelPort, OnEvent
from llm.errors import StreamCut
from llm.ports import CancelToken
from llm.settings import LLMSettings
from llm.types import End, LLMResponse, ModelEvent, ModelRequest, TextDelta

logger = logging.getLogger("llm")

MAX_MODEL = 128  # characters of a model's name, as the rows hold it
MAX_BLOCK_DEPTH = MAX_DEPTH + 16  # a call's arguments, and what a wire wraps around them


class AsyncAdapter(ModelPort):
    """Base of the adapters: a subclass writes `events`, `model_ids` and `make_client`, the rest follows.

    Args:
        model_id: the provider's model id.
        settings: address, key and time limits.
    """

    provider = ""

    def __init__(self, model_id: str, settings: LLMSettings) -> None:
        self.model_id = model_id
        self.settings = settings
        make = weakref.WeakMethod(self.make_client)  # no cycle, so that connections close when the adapter is let go
        self._clients = runtime.PerProcess(lambda: make()())  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model_id={self.model_id!r})"

    @abstractmethod
    def events(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[ModelEvent, None]:
        """The call's events in order, `End` last; runs on the loop and raises `LLMError`s.

        Args:
            request: everything the model is told.
            stream: ask the provider for a stream; False: for one whole answer, of which the events are then made.
        """

    @abstractmethod
    async def model_ids(self) -> list[str] | None:
        """The ids the provider lists; None when it has no list."""

    @abstractmethod
    def make_client(self) -> Any:
        """A new async client of the vendor's SDK, without retries, redirects or anything from the environment."""

    @property
    def client(self) -> Any:
        """The SDK's client of this process; a forked child gets its own."""
        return self._clients.get()

    def close(self) -> None:
        """Close the connections that are kept; the next call opens new ones. Happens by itself when it is let go."""
        self._clients.close()

    def models(self, *, timeout_s: float = 10.0) -> list[str] | None:
        """The ids the provider lists, or None when it has no list; the readiness probe.

        Args:
            timeout_s: seconds for the whole question.

        Raises:
            LLMError: the provider cannot be reached, or refuses the key.
        """
        _ = self.client
        return runtime.run(self.model_ids(), timeout_s=timeout_s)

    def call(
        self, request: ModelRequest, *, on_event: OnEvent | None = None, cancel: CancelToken | None = None
    ) -> LLMResponse:
        """One call; see `ModelPort.call`."""
        with closing(self._start(request, cancel, stream=on_event is not None, forward=on_event is not None)) as events:
            for event in events:
                if on_event is not None:
                    on_event(event)
                if isinstance(event, End):
                    self._log(event.response)
                    return event.response
        raise StreamCut(model=self.model_id)

    def stream_request(self, request: ModelRequest, *, cancel: CancelToken | None = None) -> Iterator[str]:
        """The text as it arrives; closing the iterator ends the call."""
        with closing(self._start(request, cancel, stream=True, forward=True)) as events:
            for event in events:
                if isinstance(event, TextDelta):
                    yield event.text
                elif isinstance(event, End):
                    self._log(event.response)

    def _start(
        self, request: ModelRequest, cancel: CancelToken | None, *, stream: bool, forward: bool
    ) -> Generator[ModelEvent, None, None]:
        _ = self.client  # made in this thread: building its TLS context must not hold up the loop
        running = runtime.RunningCall(
            lambda: self.events(request, stream=stream),
            tidy=Tidy(),
            model=self.model_id,
            deadline_s=self.deadline(request),
            cancel=cancel,
            forward=forward,
        )
        return running.results()

    def deadline(self, request: ModelRequest) -> float:
        """The whole attempt's limit, seconds."""
        return request.deadline_s if request.deadline_s is not None else self.settings.timeout_s

    def _log(self, response: LLMResponse) -> None:
        if logger.isEnabledFor(logging.INFO):
            logger.info(
                "model answered provider=%s model=%s stop=%s content_chars=%d thinking_chars=%d",
                self.provider, response.model, response.stop_reason, len(response.content), len(response.thinking),
            )  # fmt: skip
        if response.thinking and logger.isEnabledFor(logging.DEBUG):
            logger.debug("thinking: %s", response.thinking)


class Tidy:
    """Passes events on with texts that can be stored; a pair of surrogates cut between two deltas comes out whole."""

    def __init__(self) -> None:
        self._held = ""

    def __call__(self, event: ModelEvent) -> Sequence[ModelEvent]:
        kind = type(event)
        if kind is TextDelta and not self._held and event.text.isascii() and "\0" not in event.text:  # type: ignore[union-attr]
            return (event,)
        if isinstance(event, TextDelta):
            return self._text(event)
        if isinstance(event, End):
            rest = (TextDelta("\ufffd"),) if self._held else ()
            return (*rest, End(_storable_response(event.response)))
        return (event,)

    def _text(self, event: TextDelta) -> Sequence[ModelEvent]:
        text = self._held + event.text
        self._held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = storable(text[: len(text) - len(self._held)])
        return (TextDelta(text),) if text else ()


def _storable_response(response: LLMResponse) -> LLMResponse:
    content, thinking = storable(response.content), storable(response.thinking)
    model = storable(response.model)[:MAX_MODEL]
    blocks = response.blocks
    if blocks is not None and unstorable(blocks["items"], depth=MAX_BLOCK_DEPTH):
        blocks = None
    if (content, thinking, model, blocks) == (response.content, response.thinking, response.model, response.blocks):
        return response
    return replace(response, content=content, thinking=thinking, model=model, blocks=blocks)
