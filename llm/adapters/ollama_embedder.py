"""Embeddings of an Ollama server."""

from __future__ import annotations

from typing import Any

from llm.adapters.ollama import OllamaLLM
from llm.embedding import BatchEmbedder
from llm.errors import MalformedResponse
from llm.ports import EmbeddingKind
from llm.settings import EmbeddingSettings, LLMSettings


class OllamaEmbedder(BatchEmbedder):
    """One embedding model behind `/api/embed`; a text too long for it is refused, not cut."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        super().__init__(settings)
        wire = LLMSettings(
            provider="ollama",
            tiers=(),
            base_url=settings.base_url,
            timeout_s=settings.timeout_s,
            read_timeout_s=settings.timeout_s,
        )
        self._server = OllamaLLM(settings.model, wire)

    def embed_batch(self, texts: list[str], kind: EmbeddingKind) -> list[list[float]]:
        body: dict[str, Any] = {"model": self.model, "input": self.prefixed(texts, kind), "truncate": False}
        answer = self._server.ask("POST", "/api/embed", body, timeout_s=self.settings.timeout_s)
        vectors = answer.get("embeddings")
        if not isinstance(vectors, list):
            raise MalformedResponse(model=self.model, error="no embeddings")
        return vectors
