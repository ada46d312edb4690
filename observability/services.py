"""Writes: one interaction row a model call."""

from __future__ import annotations

import logging
from typing import Any

from observability.cost import estimate_cost
from observability.models import AgentInteraction
from observability.types import Interaction

logger = logging.getLogger(__name__)


def record_interaction(interaction: Interaction) -> AgentInteraction:
    """Write the row of one model call, priced; inside the round's unit, or alone when the round did not commit.

    Source: CAP-101.
    """
    return AgentInteraction.objects.create(**columns_of(interaction))


def columns_of(interaction: Interaction) -> dict[str, Any]:
    """The columns of the row of one model call, priced, for whoever writes it with other rows; says so in the log."""
    cost, source = estimate_cost(
        provider=interaction.provider,
        model=interaction.model,
        input_tokens=interaction.input_tokens,
        output_tokens=interaction.output_tokens,
        cache_read_tokens=interaction.cache_read_tokens,
        cache_write_tokens=interaction.cache_write_tokens,
    )
    owner = interaction.owner
    logger.info(
        "llm_call model=%s owner=%s:%s latency_ms=%s input_tokens=%s output_tokens=%s error=%s",
        interaction.model,
        owner.kind,
        owner.id,
        interaction.latency_ms,
        interaction.input_tokens,
        interaction.output_tokens,
        interaction.error_code or "-",
    )
    return {
        "workspace_id": owner.workspace_id,
        "user_id": owner.user_id,
        "correlation_id": owner.correlation_id,
        "owner_kind": owner.kind,
        "owner_id": owner.id,
        "conversation_id": owner.conversation_id,
        "plan_id": owner.plan_id,
        "round": interaction.round,
        "provider": interaction.provider,
        "model": interaction.model,
        "tier": interaction.tier,
        "input_tokens": interaction.input_tokens,
        "output_tokens": interaction.output_tokens,
        "cache_read_tokens": interaction.cache_read_tokens,
        "cache_write_tokens": interaction.cache_write_tokens,
        "reasoning_tokens": interaction.reasoning_tokens,
        "latency_ms": interaction.latency_ms,
        "first_token_ms": interaction.first_token_ms,
        "estimated_cost": cost,
        "price_source": source,
        "stop_reason": interaction.stop_reason,
        "error_code": interaction.error_code,
        "committed": interaction.committed,
    }
