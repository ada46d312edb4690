"""What one user may use in a day, over all his runs (issue: budgets per user and day)."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from observability.models import AgentInteraction
from tests.tools.conftest import MakeContext, call_of, executor_of
from tools.models import ToolExecution
from tools.registry import Registry, tool
from workspaces.models import User, Workspace

local = Registry()


@tool(effect="read", registry=local)
def look() -> str:
    """Look."""
    return "seen"


def used(user: User, workspace: Workspace, *, tokens: int, cost: str) -> None:
    AgentInteraction.objects.create(
        workspace=workspace,
        user=user,
        correlation_id="c",
        owner_kind="turn",
        owner_id=1,
        round=1,
        provider="x",
        model="m",
        tier="execution",
        latency_ms=1,
        input_tokens=tokens - 1,
        output_tokens=1,
        estimated_cost=Decimal(cost),
    )


def test_calls_a_day_are_counted_over_all_runs(context_of: MakeContext, settings: Any) -> None:
    settings.CAPSTAN_TOOLS = {"user_day_calls": 2}
    executor = executor_of(local)
    answers = [executor.execute(call_of("look"), context=context_of(owner_id=owner)) for owner in (1, 2, 3, 4)]
    assert [answer["success"] for answer in answers] == [True, True, False, False]
    assert "budget of 2 tool calls a day is used up" in str(answers[2]["error"])
    stranger = User.objects.create_user("other", password=None)
    stranger.memberships.create(workspace=context_of().workspace)
    assert executor.execute(call_of("look"), context=context_of(owner_id=9, user=stranger))["success"] is True
    ToolExecution.objects.update(created_at=timezone.now() - timedelta(days=1))
    assert executor.execute(call_of("look"), context=context_of(owner_id=10))["success"] is True


@pytest.mark.parametrize(
    ("limits", "told"),
    [({"user_day_tokens": 100}, "100 tokens"), ({"user_day_cost_usd": Decimal("0.50")}, "0.50 USD")],
)
def test_tokens_and_cost_a_day(
    limits: dict[str, Any], told: str, context_of: MakeContext, member: User, workspace: Workspace, settings: Any
) -> None:
    settings.CAPSTAN_TOOLS = limits
    executor = executor_of(local)
    used(member, workspace, tokens=60, cost="0.30")
    assert executor.execute(call_of("look"), context=context_of())["success"] is True
    used(member, workspace, tokens=40, cost="0.20")
    answer = executor.execute(call_of("look"), context=context_of())
    assert answer["success"] is False
    assert told in str(answer["error"])
