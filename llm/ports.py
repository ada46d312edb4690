"""The model port (CAP-001 – 003): what every agent depends on, and no vendor's SDK."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from llm.types import LLMMessage, LLMResponse, ModelEvent, ModelRequest, SystemPrompt, ToolSchema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EmbeddingKind = Literal["query", "passage"]


class CancelToken:
    """Cancels the model call it was given to, from any thread; once, and for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str:
        return self._reason or ""

    def cancel(self, reason: str) -> None:
        """Cancel; the first reason stays. Callbacks run in the caller's thread, once."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Run `callback` at the cancel, or now if it was; returns a function that takes it back."""
        with self._lock:
            if self._reason is None:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


@runtime_checkable
class BaseLLM(Protocol):
    """One model endpoint: messages in, one normalised response out (CAP-001).

    `call` is the primitive; the other three are the reference's spellings of it. All of them raise `LLMError`s only.
    """

    model_id: str
    provider: str

    def call(
        self,
        request: ModelRequest,
        *,
        on_event: Callable[[ModelEvent], None] | None = None,
        cancel: CancelToken | None = None,
    ) -> LLMResponse: ...

    def complete(
        self,
        messages: Sequence[LLMMessage],
        system: SystemPrompt = "",
        max_tokens: int = 1024,
        temperature: float | None = None,
        **options: Any,
    ) -> LLMResponse: ...

    def complete_with_tools(
        self,
        messages: Sequence[LLMMessage],
        system: SystemPrompt,
        *,
        tools: Sequence[ToolSchema],
        max_tokens: int = 4096,
        temperature: float | None = None,
        **options: Any,
    ) -> LLMResponse: ...

    def stream(
        self, messages: Sequence[LLMMessage], system: SystemPrompt = "", *, max_tokens: int = 4096, **options: Any
    ) -> Iterator[str]: ...


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of unit length; a dot product is their cosine similarity.

    Attributes:
        model: its name, stored beside each vector.
        dimensions: length of a vector.
    """

    model: str

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str], kind: EmbeddingKind) -> npt.NDArray[np.float32]:
        """One row a text, in order: float32 (n, dimensions).

        Args:
            texts: none is empty.
            kind: `query` for what is searched with, `passage` for what is searched.

        Raises:
            LLMError: the embedder cannot be reached, or refuses.
        """
        ...

    def check_index(self, *, model: str, dimensions: int) -> None:
        """Compare with what an index was filled by.

        Raises:
            EmbeddingMismatch: its vectors cannot be compared with this embedder's.
        """
        ...
