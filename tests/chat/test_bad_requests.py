"""What a client may send wrong is its own error, in the API's one shape, and never the server's."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from rest_framework.authtoken.models import Token

from tests.support.runs import make_user, make_workspace

pytestmark = pytest.mark.django_db(transaction=True)

MANY = "9" * 5_000


@pytest.fixture
def api() -> Client:
    user = make_user(is_superuser=True)
    make_workspace(user)
    make_workspace(user)
    token = Token.objects.create(user=user).key
    return Client(headers={"Authorization": f"Token {token}"}, raise_request_exception=False)


def refused(answer: Any) -> tuple[int, str]:
    body = answer.json()["error"]
    assert set(body) == {"code", "message", "details"}
    return answer.status_code, body["code"]


def nested(levels: int, key: str = "text") -> str:
    return f'{{"{key}": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize("levels", [100_000, 64])
@pytest.mark.parametrize(
    "path",
    [
        "/api/conversations/",
        "/api/tools/catalog_overview/",
        "/api/approvals/1/decide/",
        "/api/plans/1/fork/",
    ],
)
@pytest.mark.parametrize("keyed", [True, False])
def test_json_without_a_bottom_is_refused(api: Client, path: str, levels: int, *, keyed: bool) -> None:
    headers = {"Idempotency-Key": "deep"} if keyed else {}
    body = nested(levels, "arguments")
    answer = api.post(path, data=body, content_type="application/json", headers=headers)
    assert refused(answer) == (400, "invalid")
    assert "64 levels" in answer.json()["error"]["message"]


def test_json_may_be_as_deep_as_is_said(api: Client) -> None:
    answer = api.post("/api/conversations/", data=nested(63), content_type="application/json")
    assert answer.json()["error"]["details"] == {"field": "workspace", "problem": "name one of your workspaces"}


def test_a_body_past_the_limit_is_413(api: Client) -> None:
    body = '{"title": "' + "x" * 3_000_000 + '"}'
    answer = api.post("/api/conversations/", data=body, content_type="application/json")
    assert refused(answer) == (413, "too_large")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"/api/conversations/?limit={MANY}", 400),
        (f"/api/conversations/?offset={MANY}", 400),
        (f"/api/interactions/?plan={MANY}", 400),
        (f"/api/tool-executions/?plan={MANY}", 400),
        (f"/api/tools/?workspace={MANY}", 404),
        ("/api/tools/?workspace=%00", 400),
        ("/api/interactions/?correlation_id=%00", 400),
        ("/api/tool-executions/?correlation_id=%00", 400),
        ("/api/plans/?status=%00", 400),
    ],
)
def test_a_value_that_no_column_takes_is_refused(api: Client, path: str, code: int) -> None:
    assert refused(api.get(path)) == (code, "invalid" if code == 400 else "not_found")


def test_a_workspace_of_many_digits_is_none(api: Client) -> None:
    answer = api.post("/api/conversations/", data={"workspace": MANY}, content_type="application/json")
    assert refused(answer) == (404, "not_found")
