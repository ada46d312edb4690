"""What one model call was, before it is a row."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOwner:
    """Whom a model or tool call belongs to; copied onto every row it leaves.

    Args:
        kind: `turn`, `step`, `call` or `command`; `id` is that row's key (0 for a command).
        conversation_id, plan_id: what people look it up by, where there is one.
    """

    kind: str
    id: int
    workspace_id: int
    user_id: int | None
    correlation_id: str
    conversation_id: UUID | None = None
    plan_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """One model call's facts. Token counts are None where the provider did not tell."""

    owner: CallOwner
    round: int
    provider: str
    model: str
    tier: str
    latency_ms: int
    first_token_ms: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    stop_reason: str = ""
    error_code: str = ""
    committed: bool = True
