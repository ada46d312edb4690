"""Embeddings of OpenAI, or of a server compatible with it."""

from __future__ import annotations

import openai

from llm import runtime
from llm.adapters import openai_client
from llm.embedding import BatchEmbedder
from llm.errors import LLMError, MalformedResponse
from llm.ports import EmbeddingKind
from llm.settings import EmbeddingSettings, LLMSettings


class OpenAIEmbedder(BatchEmbedder):
    """One embedding model behind `/v1/embeddings`."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        super().__init__(settings)
        self._wire = LLMSettings(
            provider="openai",
            tiers=(),
            api_key=settings.api_key,
            base_url=settings.base_url,
            timeout_s=settings.timeout_s,
            read_timeout_s=settings.timeout_s,
        )
        self._clients = runtime.PerProcess(lambda: openai_client.make_client(self._wire))

    def embed_batch(self, texts: list[str], kind: EmbeddingKind) -> list[list[float]]:
        client = self._clients.get()
        return runtime.run(self._embed(client, self.prefixed(texts, kind)), timeout_s=self.settings.timeout_s)

    async def _embed(self, client: openai.AsyncOpenAI, texts: list[str]) -> list[list[float]]:
        try:
            answer = await client.embeddings.create(model=self.model, input=texts, encoding_format="float")
            if not isinstance(getattr(answer, "data", None), list):
                raise MalformedResponse(model=self.model, error="no embeddings")
            rows = sorted(answer.data, key=lambda row: row.index or 0)
            return [row.embedding for row in rows]
        except LLMError:
            raise
        except openai_client.SDK_ERRORS as exc:
            error = openai_client.translate(exc, self._wire, model=self.model)
            raise error from error.__cause__
