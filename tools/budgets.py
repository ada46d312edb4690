"""What one user may use in a day, over all his runs; turns and plans hold their own limits in the loop (CAP-043)."""

from __future__ import annotations

from datetime import UTC, timedelta
from decimal import Decimal

from django.db.models import Sum

from observability.models import AgentInteraction
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
    used = AgentInteraction.objects.filter(**today).aggregate(
        asked=Sum("input_tokens"), answered=Sum("output_tokens"), cost=Sum("estimated_cost")
    )
    tokens = (used["asked"] or 0) + (used["answered"] or 0)
    if limits.user_day_tokens is not None and tokens >= limits.user_day_tokens:
        return _over(f"{limits.user_day_tokens} tokens")
    if limits.user_day_cost_usd is not None and (used["cost"] or Decimal(0)) >= limits.user_day_cost_usd:
        return _over(f"{limits.user_day_cost_usd} USD")
    return None


def _over(what: str) -> str:
    return f"the user's budget of {what} a day is used up; it starts again at midnight UTC"
