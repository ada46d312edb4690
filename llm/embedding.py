"""What every embedder does the same: batches, unit vectors, and the comparison with an index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm.errors import EmbeddingMismatch, LLMBadRequest, MalformedResponse
from llm.ports import EmbeddingKind
from llm.settings import EmbeddingSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# What a model wants in front of a query and of a passage; the first name that the model's begins with decides.
_PREFIXES: dict[str, tuple[str, str]] = {
    "nomic-embed-text": ("search_query: ", "search_document: "),
    "mxbai-embed-large": ("Represent this sentence for searching relevant passages: ", ""),
    "multilingual-e5": ("query: ", "passage: "),
    "e5-": ("query: ", "passage: "),
}


class BatchEmbedder(ABC):
    """Base of the embedders: a subclass embeds one batch.

    Args:
        settings: model, address, key and batch size.
    """

    def __init__(self, settings: EmbeddingSettings) -> None:
        self.settings = settings
        self.model = settings.model
        self._dimensions = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r})"

    @property
    def dimensions(self) -> int:
        """Length of a vector; a provider that does not say is asked once."""
        if not self._dimensions:
            self.embed(["dimensions"], "passage")
        return self._dimensions

    @abstractmethod
    def embed_batch(self, texts: list[str], kind: EmbeddingKind) -> Sequence[Sequence[float]] | npt.NDArray[np.float32]:
        """The vectors of at most `settings.batch` texts, in order."""

    def embed(self, texts: Sequence[str], kind: EmbeddingKind) -> npt.NDArray[np.float32]:
        """One row a text, in order: float32 (n, dimensions), of unit length.

        Args:
            texts: none is empty.
            kind: `query` for what is searched with, `passage` for what is searched.

        Raises:
            LLMBadRequest: a text is empty; `index` says which.
            MalformedResponse: the provider's vectors are not what was asked for.
            LLMError: the embedder cannot be reached, or refuses.
        """
        import numpy as np

        for index, text in enumerate(texts):
            if not text.strip():
                raise LLMBadRequest(model=self.model, index=index, message="an empty text has no embedding")
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        size = self.settings.batch
        batches = [self._checked(list(texts[at : at + size]), kind) for at in range(0, len(texts), size)]
        return np.concatenate(batches)

    def check_index(self, *, model: str, dimensions: int) -> None:
        """Compare with what an index was filled by.

        Raises:
            EmbeddingMismatch: its vectors cannot be compared with this embedder's.
        """
        if (model, dimensions) != (self.model, self.dimensions):
            raise EmbeddingMismatch(
                index=f"{model} ({dimensions})",
                embedder=f"{self.model} ({self.dimensions})",
                setting="EMBEDDINGS_MODEL",
            )

    def prefixed(self, texts: list[str], kind: EmbeddingKind) -> list[str]:
        """The texts as the model was trained to see them."""
        query, passage = next((p for name, p in _PREFIXES.items() if self.model.startswith(name)), ("", ""))
        prefix = query if kind == "query" else passage
        return [prefix + text for text in texts] if prefix else texts

    def _checked(self, texts: list[str], kind: EmbeddingKind) -> npt.NDArray[np.float32]:
        import numpy as np

        try:
            vectors = np.asarray(self.embed_batch(texts, kind), dtype=np.float32)
        except (TypeError, ValueError) as exc:
            raise MalformedResponse(model=self.model, error="vectors of unequal length") from exc
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise MalformedResponse(model=self.model, error=f"{len(texts)} texts gave {vectors.shape}")
        if self._dimensions and vectors.shape[1] != self._dimensions:
            raise MalformedResponse(model=self.model, error=f"{vectors.shape[1]} dimensions after {self._dimensions}")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
            raise MalformedResponse(model=self.model, error="a vector without length")
        self._dimensions = int(vectors.shape[1])
        unit: npt.NDArray[np.float32] = (vectors / lengths).astype(np.float32)
        return unit
