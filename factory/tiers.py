"""Which model serves which tier, from the environment (CAP-011, CAP-122)."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

from django.conf import settings

from llm.adapters import build
from llm.limiter import SharedLimiter
from llm.ports import BaseLLM
from llm.retry import RetryingLLM, RetryPolicy
from llm.settings import LLMSettings, problems
from prompt.types import Tier
from streaming.connection import client
from tools.units import release_connection


@cache
def llm_settings() -> LLMSettings:
    """What the environment says of the model, read once.

    Raises:
        ConfigurationError: names the variable and the cure.
    """
    return LLMSettings.from_env(os.environ, settings.DEBUG)


def model_problems() -> list[tuple[str, str, str]]:
    """Each variable that keeps the model from being used, what is wrong with it, and the cure; empty: none."""
    found = ((str(exc.details["setting"]), str(exc.details["hint"])) for exc in problems(os.environ, settings.DEBUG))
    return [(name, "does not fit" if os.environ.get(name, "").strip() else "is not set", hint) for name, hint in found]


@cache
def _limiter(model: str) -> SharedLimiter:
    """One pause for all calls of this process that use the same key and model, shared with the other processes."""
    chosen = llm_settings()
    return SharedLimiter(client(), provider=chosen.provider, api_key=chosen.api_key, model=model)


def build_llm(*, tier: Tier = "field", patient: bool = False) -> BaseLLM:
    """The model of a tier, with retries and the shared pause around it.

    Args:
        patient: sleep out whatever wait the provider asks for, as a command does; a turn or step that would wait long
            gets `RateLimitError` instead and gives its place back.

    Raises:
        ConfigurationError: the environment names no usable model.

    Source: CAP-005, CAP-011.
    """
    chosen = llm_settings()
    model = chosen.model(tier)
    adapter = build(chosen, model)
    if chosen.provider == "demo":
        return adapter
    policy = RetryPolicy(max_attempts=chosen.max_attempts)
    if patient:
        policy = replace(policy, max_sleep_s=None)
    return RetryingLLM(adapter, policy, _limiter(model), before_sleep=release_connection)
