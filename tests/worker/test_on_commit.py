"""Views that hand a run over: what a rollback, a lock and an answer do to its message (cases H/24 d, e, i, j)."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis as redis_client
from django.conf import settings
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import include, path
from django.utils import timezone
from rest_framework.authtoken.models import Token
from rest_framework.request import Request
from rest_framework.response import Response

from chat import services
from chat.errors import FieldInvalid
from chat.http import ApiView, user_of
from chat.models import Message, Turn
from plan import steering
from plan.models import ExecutionPlan
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan
from tests.support.runs import make_conversation, make_user
from tests.worker.test_approvals import allowed, approver_of, found_workspace, waiting_plan
from tests.worker.test_dispatch import sent
from tools.models import Approval
from tools.units import intervention
from workspaces.models import User

pytestmark = pytest.mark.django_db(transaction=True)


class Start(ApiView):
    """A view as an author may write one: it starts a run, then refuses the request in one of two ways."""

    def post(self, request: Request) -> Response:
        made = send_text(user_of(request))
        if request.data.get("raise"):
            raise FieldInvalid(field="text", problem="comes too late")
        return Response({"turn_id": made.pk}, status=400)


def start_plainly(request: HttpRequest) -> HttpResponse:
    """The same without the API's own error handling."""
    send_text(User.objects.get(pk=request.GET["user"]))
    return JsonResponse({}, status=409)


urlpatterns = [path("start/", Start.as_view()), path("plainly/", start_plainly), path("", include("config.urls"))]


def send_text(user: User) -> Turn:
    return services.send_message(
        conversation_id=make_conversation(user=user).pk,
        author=user,
        text="Hello.",
        respond_async=True,
        correlation_id="h24",
        now=timezone.now(),
    )


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


def client_of(user: User) -> Client:
    return Client(headers={"authorization": f"Token {Token.objects.create(user=user).key}"})


@pytest.mark.urls(__name__)
@pytest.mark.usefixtures("atomic_requests")
def test_a_view_that_raises_leaves_neither_a_run_nor_a_message(redis):
    """H/24 d: the request's transaction rolls back although the API turns the error into an answer."""
    user = make_user()
    answer = client_of(user).post("/start/", {"raise": True}, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
    assert "turn_id" not in answer.content.decode()
    assert (Turn.objects.count(), Message.objects.count(), sent(redis, "turns")) == (0, 0, [])


@pytest.mark.urls(__name__)
@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("address", ["/start/", "/plainly/?user={}"])
def test_a_view_that_answers_with_an_error_leaves_both_or_neither(redis, address):
    """H/24 e: the answer is an error, the transaction commits: the run is there, and so is its message."""
    user = make_user()
    answer = client_of(user).post(address.format(user.pk), {}, content_type="application/json")
    assert answer.status_code in {400, 409}
    assert sent(redis, "turns") == list(Turn.objects.values_list("pk", flat=True))
    assert Turn.objects.count() == 1


@contextmanager
def listening(queue: str, look: Any) -> Iterator[list[Any]]:
    """What `look(run)` says at the moment at which a message about a run arrives, on a connection of its own."""
    seen: list[Any] = []
    client = redis_client.Redis.from_url(settings.REDIS_URL)

    def listen() -> None:
        try:
            got = client.blpop([queue], timeout=20)
            assert got is not None
            seen.append(look(int(json.loads(base64.b64decode(json.loads(got[1])["body"]))[0][0])))
        except BaseException as exc:  # noqa: BLE001  # the test compares it
            seen.append(exc)
        finally:
            connection.close()

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield seen
        thread.join(20)
    finally:
        client.close()


def as_a_worker_finds_it(pk: int) -> tuple[str, list[str]]:
    """The plan's status under its lock, taken without waiting, and how its approvals stand."""
    with transaction.atomic():
        plan = ExecutionPlan.objects.select_for_update(nowait=True).get(pk=pk)
        return plan.status, list(Approval.objects.filter(plan_id=pk).values_list("status", flat=True))


def test_a_decision_is_told_when_its_locks_are_gone(redis):
    """H/24 i: at the message's arrival the plan's row is free, and says what the decision made of it."""
    plan = waiting_plan(data_step("found", "found_workspace", {"slug": "agreed"}))
    run_plan(plan, agents_on(None, found_workspace))
    client, approval = client_of(approver_of(plan)), Approval.objects.get()
    with listening("plans", as_a_worker_finds_it) as seen:
        answer = client.post(f"/api/approvals/{approval.pk}/decide/", {"decision": "reject"}, "application/json")
        assert answer.status_code == 200, answer.content
    assert seen == [("pending", ["rejected"])]


def test_nothing_is_told_while_the_locks_are_held(redis):
    """H/24 i: the message of a change from outside waits for its commit, however long the change takes."""
    plan = waiting_plan(llm_step("a"))
    ExecutionPlan.objects.filter(pk=plan.pk).update(status="waiting_approval")
    with listening("plans", as_a_worker_finds_it) as seen:
        with intervention(ExecutionPlan, plan.pk):
            assert steering.wake_plan(plan.pk)
            assert redis.llen("plans") == 0
        assert not connection.in_atomic_block
    assert seen == [("pending", [])]


def test_the_answer_names_the_run_that_the_message_names(redis):
    """H/24 j: the id in the answer is the row's own, which was known before the commit."""
    user = allowed(make_user())
    conversation = make_conversation(user=user)
    client = client_of(user)
    answer = client.post(
        f"/api/conversations/{conversation.pk}/messages/",
        {"text": "Hi"},
        "application/json",
        headers={"prefer": "respond-async"},
    )
    assert answer.status_code == 202, answer.content
    turn = Turn.objects.get()
    assert (answer.json()["turn_id"], sent(redis, "turns")) == (turn.pk, [turn.pk])
    assert answer.headers["Location"].endswith(f"/api/turns/{turn.pk}/")
    plan = hold_plan(llm_step("a"), owner=user, workspace=conversation.workspace)
    steering.cancel_plan(plan_id=plan.pk)
    again = client.post(f"/api/plans/{plan.pk}/retry/", {}, "application/json")
    fork = ExecutionPlan.objects.get(retry_of=plan)
    assert (again.status_code, again.json()["id"], sent(redis, "plans")) == (202, fork.pk, [fork.pk])
