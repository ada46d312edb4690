"""Reads: what a set of model calls has used, and how far a run got with them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Count, Max, Q, QuerySet, Sum

from observability.models import AgentInteraction


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens, input and output together, and USD; None where the price of one of the calls is unknown, never zero."""

    tokens: int
    cost_usd: Decimal | None


def usage_of(calls: QuerySet[AgentInteraction]) -> Used:
    """What these calls used. A call that failed before it used anything has no price and needs none.

    Source: CAP-101.
    """
    used = calls.aggregate(
        asked=Sum("input_tokens"),
        answered=Sum("output_tokens"),
        usd=Sum("estimated_cost"),
        unpriced=Count("pk", filter=Q(estimated_cost=None) & ~(Q(input_tokens=None) & ~Q(error_code=""))),
    )
    return Used(
        tokens=(used["asked"] or 0) + (used["answered"] or 0),
        cost_usd=None if used["unpriced"] else used["usd"] or Decimal(0),
    )


def last_round_asked(owner_kind: str, owner_id: int) -> int | None:
    """The round of a run's last model call, whether or not an answer came or was kept; None when there was none."""
    calls = AgentInteraction.objects.filter(owner_kind=owner_kind, owner_id=owner_id, round__gt=0)
    last: int | None = calls.aggregate(last=Max("round"))["last"]
    return last
