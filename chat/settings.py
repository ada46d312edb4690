"""What `chat` asks of the environment."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """Setting `CAPSTAN_CHAT`, by these names.

    Args:
        identity: the agent of a new conversation.
        rate_limit_waits: how often a turn may be sent back to wait for the provider before it fails.
    """

    identity: str = "planner"
    rate_limit_waits: int = 10


def chat_settings() -> ChatSettings:
    return ChatSettings(**getattr(settings, "CAPSTAN_CHAT", {}))
