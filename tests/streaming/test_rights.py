"""Who may read a stream, and what an idle one costs."""

from __future__ import annotations

import json
import uuid

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from rest_framework.authtoken.models import Token

from chat.models import Conversation
from plan.models import ExecutionPlan, PlanStep
from streaming.signals import LiveRound
from streaming.signals import client as redis_client
from tests.streaming.servers import StreamClient, Valkey, Web, reading, start_web
from tests.streaming.talk import joined, say, session_of, texts, token_of
from tests.support.processes import Processes, database_url
from tests.support.runs import make_conversation, make_plan, make_user
from tests.support.waiting import wait_until
from workspaces.models import Membership, User

pytestmark = pytest.mark.django_db(transaction=True)


class TestRight:
    def test_a_session_reads_and_nobody_else(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        path = f"/api/conversations/{conversation.pk}/stream/"
        assert web.get(path)[0] == 401
        assert web.get(path, Authorization="Token nonsense")[0] == 401
        assert web.get(path, Cookie="sessionid=nonsense")[0] == 401
        assert (
            web.get(f"/api/conversations/{uuid.uuid4()}/stream/", Authorization=token_of(conversation.user))[0] == 404
        )
        with reading(web, path, Cookie=f"sessionid={session_of(conversation.user)}") as client:
            client.wait_for_events("caught_up")
            assert client.status == 200

    def test_a_foreign_host_is_refused(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        path = f"/api/conversations/{conversation.pk}/stream/"
        for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost:x"):
            status, body = web.get(path, Authorization=token_of(conversation.user), Host=host)
            assert (status, json.loads(body)["error"]["code"]) == (400, "host.invalid"), host

    def test_the_correlation_id_is_echoed(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        headers = {"Authorization": token_of(conversation.user), "X_Correlation_ID": "abc-1"}
        with reading(web, f"/api/conversations/{conversation.pk}/stream/", **headers) as client:
            assert client._response.headers["X-Correlation-ID"] == "abc-1"

    @pytest.mark.parametrize("loss", ["membership", "active", "session", "token"])
    def test_a_right_that_is_lost_ends_the_stream_at_the_ping(self, web: Web, valkey: Valkey, loss: str) -> None:
        conversation = make_conversation()
        user = conversation.user
        session = session_of(user)
        headers = {"Authorization": token_of(user)} if loss == "token" else {"Cookie": f"sessionid={session}"}
        with reading(web, f"/api/conversations/{conversation.pk}/stream/", **headers) as client:
            client.wait_for_events("caught_up")
            if loss == "membership":
                Membership.objects.filter(user=user).delete()
            elif loss == "active":
                User.objects.filter(pk=user.pk).update(is_active=False)
            elif loss == "session":
                SessionStore(session).delete()
            else:
                Token.objects.filter(user=user).delete()
            client.wait_for(lambda c: c.ended, "the end")
            [end] = client.named("stream_end")
            assert json.loads(end["data"])["reason"] == ("not_found" if loss == "membership" else "not_authenticated")

    def test_who_may_see_all_reads_others_conversations_in_that_workspace_alone(self, web: Web, valkey: Valkey) -> None:
        mine, foreign = make_conversation(), make_conversation()
        admin = make_user(is_superuser=True)
        Membership.objects.create(user=admin, workspace=mine.workspace)
        with reading(web, f"/api/conversations/{mine.pk}/stream/", Authorization=token_of(admin)) as client:
            client.wait_for_events("caught_up")
        assert web.get(f"/api/conversations/{foreign.pk}/stream/", Authorization=token_of(admin))[0] == 404

    def test_a_plans_stream_shows_that_plan_alone(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        plan = make_plan(owner=conversation.user, workspace=conversation.workspace, conversation_id=conversation.pk)
        ExecutionPlan.objects.filter(pk=plan.pk).update(stream=conversation.stream)
        step = PlanStep.objects.create(plan=plan, key="a", order=1, action="do")
        plan.refresh_from_db()
        say(conversation, "of the chat")
        say(conversation, "of the plan", plan_id=plan.pk)
        say(conversation, "of the step", run=f"step:{step.pk}")
        with reading(web, f"/api/plans/{plan.pk}/stream/", Authorization=token_of(plan.owner)) as client:
            client.wait_for_events("caught_up")
            LiveRound(conversation.pk, run="turn:3", round=1, fence=1).append("secret")
            LiveRound(conversation.pk, run=f"step:{step.pk}", round=1, fence=1).append("shown")
            client.wait_for_events("token")
            assert texts(client) == ["of the plan", "of the step"]
            assert joined(client) == "shown"


class TestCost:
    def test_200_idle_streams_hold_no_database_connection(self, processes: Processes, valkey: Valkey) -> None:
        """The pool of the server has 4; each stream comes up, and other requests are served beside them."""
        environment = {"DATABASE_URL": f"{database_url()}?application_name=idle-streams"}
        web = start_web(processes, valkey.url, ping_s=15, pool=4, **environment)
        conversation = make_conversation()
        path, token = f"/api/conversations/{conversation.pk}/stream/", token_of(conversation.user)
        clients = [StreamClient(web, path, {"Authorization": token}) for _ in range(200)]
        try:
            for client in clients:
                client.wait_for_events("caught_up")
            say(conversation, "to all")
            for client in clients:
                client.wait_for(lambda c: texts(c) == ["to all"], "the row")
            assert 1 <= server_connections() <= 4
            assert web.get("/api/conversations/", Authorization=token)[0] < 500
        finally:
            for client in clients:
                client.close()
        wait_until(lambda: subscriptions(valkey, conversation) == 0, what="the server has let the channel go")


def test_a_server_that_stops_lets_its_streams_go_at_once(processes: Processes, valkey: Valkey) -> None:
    conversation = make_conversation()
    process, url = processes.web(environment={"REDIS_URL": valkey.url})
    path, token = f"/api/conversations/{conversation.pk}/stream/", token_of(conversation.user)
    with reading(Web(port=int(url.rpartition(":")[2])), path, Authorization=token) as client:
        client.wait_for_events("caught_up")
        process.terminate()
        assert client.ended
    assert "timeout graceful shutdown exceeded" not in process.output
    assert "Traceback" not in process.output


def server_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle-streams'")
        return int(cursor.fetchone()[0])


def subscriptions(valkey: Valkey, conversation: Conversation) -> int:
    return int(redis_client().pubsub_numsub(conversation.stream.channel)[0][1])
