"""A POST whose answer got lost is answered again and does nothing twice, whatever it made (design § 8)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from chat.models import IdempotencyKey
from plan.models import ExecutionPlan, PlanChange
from tests.support.plans import hold_plan, llm_step

pytestmark = pytest.mark.django_db(transaction=True)


def post(plan: ExecutionPlan, what: str, body: Any) -> Any:
    client = Client(headers={"Idempotency-Key": "once"})
    client.force_login(plan.owner)
    return client.post(f"/api/plans/{plan.pk}/{what}/", data=json.dumps(body), content_type="application/json")


def lose_the_answer() -> None:
    """The process died after the commit and before it answered."""
    IdempotencyKey.objects.update(status_code=None)


@pytest.mark.parametrize(("what", "body"), [("retry", {}), ("fork", {"step": "a"})])
def test_a_plan_is_forked_once(what, body):
    plan = hold_plan(llm_step("a"))
    ExecutionPlan.objects.filter(pk=plan.pk).update(status="failed", ended_at="2026-01-01T00:00Z")
    first = post(plan, what, body)
    assert first.status_code == 202
    lose_the_answer()
    again = post(plan, what, body)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert ExecutionPlan.objects.filter(retry_of=plan).count() == 1


def test_a_plan_is_adapted_once():
    plan = hold_plan(llm_step("a"), llm_step("b"))
    changes = {"changes": [{"op": "insert", "key": "c", "after": "b", "action": "Do c."}]}
    assert post(plan, "adapt", changes).status_code == 200
    lose_the_answer()
    again = post(plan, "adapt", changes)
    assert (again.status_code, [step["key"] for step in again.json()["steps"]]) == (200, ["a", "b", "c"])
    assert PlanChange.objects.filter(plan=plan).count() == 1
