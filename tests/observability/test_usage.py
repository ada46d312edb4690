"""What calls used: an unknown price is unknown, never zero."""

from __future__ import annotations

from decimal import Decimal

import pytest

from observability.models import AgentInteraction
from observability.queries import Used, usage_of
from tests.support.runs import make_workspace

pytestmark = pytest.mark.django_db


def call(**columns: object) -> None:
    AgentInteraction.objects.create(
        **{
            "workspace": make_workspace(),
            "correlation_id": "c",
            "owner_kind": "turn",
            "owner_id": 1,
            "provider": "p",
            "model": "m",
            "latency_ms": 1,
            **columns,
        }
    )


def used() -> Used:
    return usage_of(AgentInteraction.objects.all())


def test_nothing_costs_nothing():
    assert used() == Used(tokens=0, cost_usd=Decimal(0))


def test_tokens_and_prices_add_up():
    call(input_tokens=10, output_tokens=5, estimated_cost=Decimal("0.5"))
    call(input_tokens=1, output_tokens=1, estimated_cost=Decimal("0.25"))
    assert used() == Used(tokens=17, cost_usd=Decimal("0.75"))


def test_one_unknown_price_makes_the_sum_unknown():
    call(input_tokens=10, output_tokens=5, estimated_cost=Decimal("0.5"))
    call(input_tokens=1, output_tokens=1)
    assert used() == Used(tokens=17, cost_usd=None)


def test_a_call_that_failed_before_it_used_anything_needs_no_price():
    call(input_tokens=10, output_tokens=5, estimated_cost=Decimal("0.5"))
    call(error_code="llm.connection")
    assert used() == Used(tokens=15, cost_usd=Decimal("0.5"))
