"""What one user may use in a day, over all his runs; turns and plans hold their own limits in the loop (CAP-043)."""

from __future__ import annotations

from datetime import UTC, timedelta

from observability.models import AgentInteraction
from observability.queries import usage_of
from tools.models import ExecutionStatus, ToolExecution
from tools.settings import tool_settings
from tools.types import ToolContext


def over_budget(context: ToolContext) -> str | None:
    """Why the user may not call another tool today, or None. The day is UTC's, all workspaces together."""
    limits = tool_settings()
    if limits.user_day_calls is None and limits.user_day_tokens is None and limits.user_day_cost_usd is None:
        return None
    start = context.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    today = {"user_id": context.user.pk, "created_at__gte": start, "created_at__lt": start + timedelta(days=1)}
    if limits.user_day_calls is not None:
        made = ToolExecution.objects.filter(**today).exclude(status=ExecutionStatus.BLOCKED).count()
        if made >= limits.user_day_calls:
            return _over(f"{limits.user_day_calls} tool calls")
    if limits.user_day_tokens is None and limits.user_day_cost_usd is None:
        return None
    used = usage_of(AgentInteraction.objects.filter(**today))
    if limits.user_day_tokens is not None and used.tokens >= limits.user_day_tokens:
        return _over(f"{limits.user_day_tokens} tokens")
    if limits.user_day_cost_usd is not None and used.cost_usd is None:
        return (
            "the user's budget in USD cannot be kept: the price of a model is unknown; an operator sets CAPSTAN_PRICES"
        )
    if limits.user_day_cost_usd is not None and used.cost_usd is not None and used.cost_usd >= limits.user_day_cost_usd:
        return _over(f"{limits.user_day_cost_usd} USD")
    return None


def _over(what: str) -> str:
    return f"the user's budget of {what} a day is used up; it starts again at midnight UTC"
