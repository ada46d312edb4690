"""Which model serves which tier, from the environment (CAP-011, CAP-122)."""

from __future__ import annotations

import os
from functools import cache

from django.conf import settings

from llm.adapters import build
from llm.ports import BaseLLM
from llm.settings import LLMSettings
from prompt.types import Tier


@cache
def llm_settings() -> LLMSettings:
    """What the environment says of the model, read once.

    Raises:
        ConfigurationError: names the variable and the cure.
    """
    return LLMSettings.from_env(os.environ, settings.DEBUG)


def build_llm(*, tier: Tier = "field") -> BaseLLM:
    """The model of a tier.

    Raises:
        ConfigurationError: the environment names no usable model.

    Source: CAP-011.
    """
    chosen = llm_settings()
    return build(chosen, chosen.model(tier))
