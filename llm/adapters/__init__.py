"""The vendors end here. `build` is what the composition root calls; each SDK loads with its adapter."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from llm.adapters.base import AsyncAdapter
    from llm.settings import LLMSettings

_ADAPTERS = {
    "anthropic": ("llm.adapters.anthropic", "AnthropicLLM"),
    "demo": ("llm.adapters.demo", "DemoLLM"),
    "ollama": ("llm.adapters.ollama", "OllamaLLM"),
    "openai_chat": ("llm.adapters.openai_chat", "OpenAIChatLLM"),
    "openai_responses": ("llm.adapters.openai_responses", "OpenAIResponsesLLM"),
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
