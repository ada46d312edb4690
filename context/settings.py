"""What `context` asks of the environment."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Setting `CAPSTAN_CONTEXT`, by these names.

    Args:
        ttl_s: how long a built snapshot is kept, seconds; a new version makes it stale at once.
        budget_tokens: a larger snapshot becomes a summary that says so.
        build_wait_s: how long one process waits for another that builds the same snapshot, seconds.
    """

    ttl_s: int = 300
    budget_tokens: int = 25_000
    build_wait_s: float = 5.0


def context_settings() -> ContextSettings:
    return ContextSettings(**getattr(settings, "CAPSTAN_CONTEXT", {}))
