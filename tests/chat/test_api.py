"""The API: what goes in, what comes out, and every way to get it wrong."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.authtoken.models import Token

from chat.api import agents
from chat.models import Conversation, IdempotencyKey, Message, Turn
from chat.runner import run_turn
from llm.testing import ScriptedLLM, call
from streaming.connection import SOCKET_TIMEOUT_S, circuit, client
from tests.support.redis import mute_redis
from tests.support.runs import make_user, make_workspace

pytestmark = pytest.mark.django_db(transaction=True)

_playing: list[ScriptedLLM] = []


def scripted_agents(identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
    """What `CAPSTAN_AGENTS` names in these tests: the product's own agents on the test's script."""
    from factory.agents import create_agent

    return create_agent(identity, llm=_playing[-1], mode=mode, tier=tier)


@pytest.fixture
def play(settings):
    settings.CAPSTAN_AGENTS = f"{__name__}.scripted_agents"

    def start(*answers: Any) -> ScriptedLLM:
        _playing.append(ScriptedLLM(answers))
        return _playing[-1]

    yield start
    _playing.clear()


class Api:
    def __init__(self, user: Any, **headers: str) -> None:
        self.token = Token.objects.get_or_create(user=user)[0].key
        self.client = Client(headers={"Authorization": f"Token {self.token}", **headers}, raise_request_exception=False)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        send = getattr(self.client, method)
        if body is None:
            return send(f"/api{path}", headers=names)
        return send(f"/api{path}", data=json.dumps(body), content_type="application/json", headers=names)


@pytest.fixture
def api():
    user = make_user(is_superuser=True)
    make_workspace(user)
    return Api(user)


def conversation(api: Api, **body: Any) -> str:
    answer = api("post", "/conversations/", body)
    assert answer.status_code == 201, answer.content
    return answer.json()["id"]


def error(answer: Any) -> tuple[int, str]:
    assert set(answer.json()) == {"error"}, answer.content
    assert set(answer.json()["error"]) == {"code", "message", "details"}
    return answer.status_code, answer.json()["error"]["code"]


def test_a_conversation_from_first_message_to_deletion(api, play):
    play("Hello.")
    made = api("post", "/conversations/", {"title": "Greetings", "context_type": "repo", "context_id": "7"})
    assert made.status_code == 201
    assert made.json()["title"] == "Greetings"
    key = made.json()["id"]
    sent = api("post", f"/conversations/{key}/messages/", {"text": "Hi"}, X_Correlation_ID="abc-1")
    assert sent.status_code == 201
    assert sent.headers["X-Correlation-ID"] == "abc-1"
    body = sent.json()
    assert (body["status"], body["text"], body["plan_id"], body["approvals"]) == ("completed", "Hello.", None, [])
    assert body["correlation_id"] == "abc-1"
    assert api("get", f"/turns/{body['turn_id']}/").json() == body
    rows = api("get", f"/conversations/{key}/messages/").json()["results"]
    assert [(row["role"], row["text"]) for row in rows] == [("user", "Hi"), ("assistant", "Hello.")]
    assert rows[1]["parent_id"] == rows[0]["id"]
    assert api("patch", f"/conversations/{key}/", {"title": "New"}).json()["title"] == "New"
    assert [row["id"] for row in api("get", "/conversations/").json()["results"]] == [key]
    traced = api("get", "/interactions/?correlation_id=abc-1").json()["results"]
    assert [row["model"] for row in traced] == ["scripted"]
    assert api("delete", f"/conversations/{key}/").status_code == 204
    assert error(api("get", f"/conversations/{key}/")) == (404, "not_found")
    assert Message.objects.count() == 0
    assert len(api("get", "/interactions/?correlation_id=abc-1").json()["results"]) == 1


def test_a_plan_through_the_api(api, play):
    play(call("create_plan", goal="Look around", steps=[{"key": "a", "action": "Look", "is_critical": True}]))
    key = conversation(api)
    sent = api("post", f"/conversations/{key}/messages/", {"text": "Plan"}).json()
    plan = api("get", f"/plans/{sent['plan_id']}/").json()
    assert (plan["status"], [step["key"] for step in plan["steps"]]) == ("pending", ["a"])
    assert [p["id"] for p in api("get", f"/plans/?conversation={key}").json()["results"]] == [plan["id"]]
    executions = api("get", f"/tool-executions/?conversation={key}").json()["results"]
    assert [row["tool_name"] for row in executions] == ["create_plan"]
    assert api("get", f"/tool-executions/{executions[0]['id']}/").json()["status"] == "succeeded"
    assert error(api("delete", f"/conversations/{key}/")) == (409, "conversation.busy")
    cancelled = api("post", f"/plans/{plan['id']}/cancel/")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    retried = api("post", f"/plans/{plan['id']}/retry/", Idempotency_Key="retry-1")
    assert (retried.status_code, retried.json()["retry_of"]) == (202, plan["id"])
    again = api("post", f"/plans/{plan['id']}/retry/", Idempotency_Key="retry-1")
    assert again.json() == retried.json()


def test_respond_async_leaves_the_turn_to_a_worker(api, play):
    llm = play("never")
    key = conversation(api)
    sent = api("post", f"/conversations/{key}/messages/", {"text": "Hi"}, Prefer="respond-async")
    assert sent.status_code == 202
    assert sent.json()["status"] == "queued"
    assert sent.headers["Location"] == sent.json()["url"] == f"/api/turns/{sent.json()['turn_id']}/"
    assert llm.remaining == 1
    busy = api("post", f"/conversations/{key}/messages/", {"text": "Again"})
    assert error(busy) == (409, "turn.active")
    assert busy.json()["error"]["details"] == {"turn_id": sent.json()["turn_id"], "status": "queued", "approvals": []}
    assert error(api("delete", f"/conversations/{key}/")) == (409, "turn.active")
    stopped = api("post", f"/turns/{sent.json()['turn_id']}/cancel/")
    assert (stopped.status_code, stopped.json()["status"]) == (200, "cancelled")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "  \n "}, "text"),
        ({"text": "x" * 32_001}, "text"),
        ({"text": 3.5, "supersede": "maybe"}, "supersede"),
        ({"text": "a\u0000b"}, "text"),
    ],
)
def test_a_bad_message_is_400_and_names_the_field(api, play, body, field):
    play("never")
    answer = api("post", f"/conversations/{conversation(api)}/messages/", body)
    assert error(answer) == (400, "invalid")
    details = answer.json()["error"]["details"]
    assert field in (details.get("fields") or {details.get("field"): ""})
    assert Turn.objects.count() == 0


def test_no_json_is_400(api):
    answer = api.client.post("/api/conversations/", data="{", content_type="application/json")
    assert error(answer) == (400, "invalid")


def test_whose_is_whose(api, play):
    play("secret")
    key = conversation(api)
    turn = api("post", f"/conversations/{key}/messages/", {"text": "Hi"}).json()["turn_id"]
    stranger = make_user()
    make_workspace(stranger)
    other = Api(stranger)
    for method, path in [
        ("get", f"/conversations/{key}/"),
        ("patch", f"/conversations/{key}/"),
        ("delete", f"/conversations/{key}/"),
        ("get", f"/conversations/{key}/messages/"),
        ("post", f"/conversations/{key}/messages/"),
        ("get", f"/turns/{turn}/"),
        ("post", f"/turns/{turn}/cancel/"),
        ("get", "/conversations/6f2c1a5e-0000-4000-8000-000000000000/"),
        ("get", "/turns/99999999999999999999/"),
        ("get", "/nowhere/"),
    ]:
        answer = other(method, path, {"title": "x", "text": "x"} if method in {"patch", "post"} else None)
        assert error(answer) == (404, "not_found"), path
    assert other("get", "/conversations/").json()["results"] == []
    assert other("get", "/interactions/").json()["results"] == []


def test_nobody_is_401_and_a_session_needs_the_csrf_token(api):
    assert error(Client().get("/api/conversations/")) == (401, "not_authenticated")
    assert error(Client(headers={"Authorization": "Token wrong"}).get("/api/conversations/")) == (
        401,
        "not_authenticated",
    )
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(Token.objects.get(key=api.token).user)
    assert browser.get("/api/conversations/").status_code == 200
    assert error(browser.post("/api/conversations/", data="{}", content_type="application/json")) == (403, "forbidden")


def test_a_workspace_must_be_named_by_somebody_with_several(api):
    user = Token.objects.get(key=api.token).user
    second = make_workspace(user)
    answer = api("post", "/conversations/", {})
    assert error(answer) == (400, "invalid")
    assert answer.json()["error"]["details"]["field"] == "workspace"
    assert api("post", "/conversations/", {"workspace": second.slug}).json()["workspace"] == second.pk
    assert api("post", "/conversations/", {"workspace": str(second.pk)}).status_code == 201
    assert error(api("post", "/conversations/", {"workspace": "nobodys"})) == (404, "not_found")


def test_an_idempotency_key_makes_a_repeated_post_harmless(api, play):
    llm = play("one", "two")
    made = api("post", "/conversations/", {"title": "a"}, Idempotency_Key="c-1")
    assert api("post", "/conversations/", {"title": "a"}, Idempotency_Key="c-1").json() == made.json()
    assert Conversation.objects.count() == 1
    url = f"/conversations/{made.json()['id']}/messages/"
    first = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1")
    again = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1")
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["Idempotent-Replay"] == "true"
    assert error(api("post", url, {"text": "Other"}, Idempotency_Key="m-1")) == (422, "idempotency.mismatch")
    assert (Turn.objects.count(), llm.remaining) == (1, 1)
    assert error(api("post", url, {"text": "Hi"}, Idempotency_Key="with space")) == (400, "invalid")


def test_a_key_whose_answer_got_lost_answers_from_the_turn(api, play):
    play("one")
    url = f"/conversations/{conversation(api)}/messages/"
    first = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1")
    IdempotencyKey.objects.update(status_code=None)  # the process died before it could answer
    again = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1")
    assert (again.status_code, again.json()["turn_id"]) == (201, first.json()["turn_id"])


def test_a_replay_while_the_turn_goes_on_does_not_stand_for_its_answer(api, play):
    play("one")
    url = f"/conversations/{conversation(api)}/messages/"
    first = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1", Prefer="respond-async")
    early = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1")
    assert (first.status_code, early.status_code, early.json()["status"]) == (202, 202, "queued")
    assert early.headers["Idempotent-Replay"] == "true"
    run_turn(first.json()["turn_id"], agents=agents(), clock=timezone.now)
    late = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1")
    assert (late.status_code, late.json()["status"], late.json()["text"]) == (201, "completed", "one")
    assert api("post", url, {"text": "Hi"}, Idempotency_Key="m-1").json() == late.json()


def test_a_refused_request_does_not_use_its_key_up(api, play):
    play("one")
    url = f"/conversations/{conversation(api)}/messages/"
    assert api("post", url, {"text": ""}, Idempotency_Key="k").status_code == 400
    assert IdempotencyKey.objects.filter(key="k").count() == 0


@pytest.fixture
def no_redis(settings):
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    client.cache_clear()
    yield
    client.cache_clear()
    circuit.__init__()  # type: ignore[misc]  # as of a process that begins


def test_without_redis_messages_are_taken_and_answered(api, play, no_redis):
    play("still here", "and here")
    key = conversation(api)
    sent = api("post", f"/conversations/{key}/messages/", {"text": "Hi"})
    assert (sent.status_code, sent.json()["text"]) == (201, "still here")
    later = api("post", f"/conversations/{key}/messages/", {"text": "Hi"}, Prefer="respond-async")
    assert (later.status_code, later.json()["status"]) == (202, "queued")


def test_a_redis_that_hangs_costs_a_message_one_time_out(api, play, settings, no_redis):
    play("still here")
    key = conversation(api)
    with mute_redis() as url:
        settings.REDIS_URL = url
        client.cache_clear()
        circuit.__init__()  # type: ignore[misc]  # as of a process that begins
        began = time.monotonic()
        sent = api("post", f"/conversations/{key}/messages/", {"text": "Hi"})
        took = time.monotonic() - began
    assert (sent.status_code, sent.json()["text"]) == (201, "still here")
    assert took < 2 * SOCKET_TIMEOUT_S


def test_the_schema_describes_every_address(api):
    text = api("get", "/schema/").content.decode()
    for path in ("/api/conversations/{conversation_id}/messages/", "/api/turns/{turn_id}/cancel/", "/api/plans/"):
        assert path in text
