"""What no row can hold, or no code can walk, is refused by the admin's forms at its field (CAP-055)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plan.models import ExecutionPlan, PlanChange
from tests.plan.test_admin import VIEWS, page_of, send, shown, signed_in, staff, step_fields
from tests.support.plans import hold_plan, llm_step
from workspaces.models import User

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> User:
    return staff(*VIEWS)


@pytest.fixture
def plan(owner: User) -> ExecutionPlan:
    return hold_plan(llm_step("a"), llm_step("b"), llm_step("c"), owner=owner)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


BAD_ARGS = {
    "nan": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "too large": '{"a": 1e999}',
    "NUL in a value": '{"a": ["\\u0000"]}',
    "NUL in a key": '{"\\u0000": 1}',
    "half a surrogate pair": '{"a": "\\ud800"}',
    "half a surrogate pair in a key": '{"\\ud800": 1}',
    "5,000 digits": '{"a": ' + "9" * 5_000 + "}",
    "65 deep": nested(65),
    "900 deep": nested(900),
    "100,000 deep": nested(100_000),
}
FIELDS = {"insert": {"key": "new", "kind": "llm", "after": "c"}, "update": {"reads": "a"}}


@pytest.mark.parametrize("op", FIELDS)
@pytest.mark.parametrize("args", BAD_ARGS.values(), ids=BAD_ARGS)
def test_arguments_that_cannot_be_kept_are_refused(plan: ExecutionPlan, owner: User, op: str, args: str) -> None:
    client = signed_in(owner)
    initial = {"initial-update-args": "{}"} if op == "update" else {}
    response = send(client, plan, op, step="b", **step_fields(op, args=args, **FIELDS[op]), **initial)
    assert response.status_code == 200
    form = getattr(response.context["page"], op)
    assert list(form.errors) == ["args"]
    assert form["args"].value() == args
    assert not PlanChange.objects.exists()
    assert client.get(shown(plan)).status_code == 200


@pytest.mark.parametrize("op", FIELDS)
def test_arguments_as_deep_as_a_call_may_be_are_kept(plan: ExecutionPlan, owner: User, op: str) -> None:
    client = signed_in(owner)
    assert send(client, plan, op, step="b", **step_fields(op, args=nested(64), **FIELDS[op])).status_code == 302
    assert PlanChange.objects.get().after["args"] == json.loads(nested(64))
    assert client.get(shown(plan)).status_code == 200
    assert client.get(page_of(plan), {"step": "b"}).status_code == 200


@pytest.mark.parametrize(
    ("op", "field", "value"),
    [
        ("insert", "key", "n\0"),
        ("insert", "action", "Do\0it."),
        ("insert", "reads", "a, b\0"),
        ("insert", "reads", "x" * 65),
        ("insert", "recipe", "r\0"),
        ("update", "action", "Do\0it."),
        ("update", "reads", "a\0"),
        ("update", "tool_name", "t\0"),
    ],
)
def test_text_that_cannot_be_kept_is_refused(plan: ExecutionPlan, owner: User, op: str, field: str, value: str) -> None:
    fields: dict[str, Any] = {**FIELDS[op], field: value}
    response = send(signed_in(owner), plan, op, step="b", **step_fields(op, **fields))
    assert response.status_code == 200
    assert list(getattr(response.context["page"], op).errors) == [field]
    assert not PlanChange.objects.exists()


def test_an_order_with_a_nul_is_refused(plan: ExecutionPlan, owner: User) -> None:
    response = send(signed_in(owner), plan, "reorder", **{"order-keys": "a b\0 c"})
    assert response.status_code == 200
    assert "Null characters" in str(response.context["page"].order.errors["keys"])
