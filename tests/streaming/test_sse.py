"""The stream as a client gets it: real bytes from a real server, rows from PostgreSQL, signals from Valkey."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection, transaction
from rest_framework.authtoken.models import Token

from chat.models import Conversation
from events.models import EventRecord, Stream
from events.types import EventName
from plan.models import ExecutionPlan, PlanStep
from streaming.live import drain
from streaming.signals import LiveRound, wake
from tests.fixtures.cases import sse_reference
from tests.streaming.servers import StreamClient, Valkey, Web, reading, start_web, wait_until
from tests.support.processes import Processes, database_url
from tests.support.runs import make_conversation, make_plan, make_user
from workspaces.models import Membership, User

pytestmark = pytest.mark.django_db(transaction=True)

CASE = json.loads((Path(__file__).parents[1] / "fixtures/cases/18_stream_outbound.json").read_text())


def say(conversation: Conversation | ExecutionPlan, *texts: str, signal: bool = True, **payload: Any) -> list[int]:
    """Rows as a unit would write them."""
    records = [EventRecord(EventName.TURN_QUEUED, {"text": text, **payload}) for text in texts]
    with transaction.atomic():  # number and row become visible together
        ids = Stream.objects.append(conversation.stream_id, records, correlation_id="c1")
    if signal:
        wake(conversation.stream_id)
    return ids


def token_of(user: User) -> str:
    return f"Token {Token.objects.get_or_create(user=user)[0].key}"


def open_stream(web: Web, conversation: Conversation, *, query: str = "", last_id: str | None = None) -> Any:
    headers = {"Authorization": token_of(conversation.user)}
    if last_id is not None:
        headers["Last_Event_ID"] = last_id
    return reading(web, f"/api/conversations/{conversation.pk}/stream/{query}", **headers)


def texts(client: StreamClient) -> list[str]:
    return [json.loads(event["data"])["text"] for event in client.named("turn_queued")]


def id_of(client: StreamClient, text: str) -> str:
    return next(str(e["id"]) for e in client.rows if json.loads(e["data"]).get("text") == text)


class TestWire:
    """Case H/18, part a."""

    @pytest.mark.parametrize("number", range(len(CASE["part_a"]["payloads"])))
    def test_a_payload_arrives_as_it_was(self, web: Web, valkey: Valkey, number: int) -> None:
        payload = CASE["part_a"]["payloads"][number]
        conversation = make_conversation()
        stored = payload.replace("\0", "")  # PostgreSQL has no NUL; live text has
        [seq] = say(conversation, stored)
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            live = LiveRound(conversation.pk, run="turn:1", round=1, fence=1)
            for start in range(0, len(payload), 4_000):
                live.append(payload[start : start + 4_000])
            live.append("|")
            client.wait_for(lambda c: joined(c).endswith("|"), "the live text")
        assert texts(client) == [stored]
        assert joined(client) == payload + "|"
        assert {event["event"] for event in client.events} == {"turn_queued", "caught_up", "token"}
        assert [event["id"] for event in client.rows] == [f"{seq}-{conversation.pk.hex[:8]}"]

    @pytest.mark.parametrize("name", CASE["part_a"]["event_names_if_a_user_can_choose_them"])
    def test_an_event_name_cannot_write_fields(self, name: str) -> None:
        from streaming.wire import encode

        [event] = sse_reference.parse(encode(name, {"a": 1}, event_id="3-abcdefab"))
        assert (event["data"], event["id"]) == ('{"a":1}', "3-abcdefab")
        assert event["event"] == (name if name == "plain" else "message")


def joined(client: StreamClient) -> str:
    text = ""
    for event in client.named("token"):
        data = json.loads(event["data"])
        text = text[: data["offset"]] + data["text"] + text[data["offset"] + len(data["text"]) :]
    return text


class TestReplay:
    """Case H/18, part b."""

    @pytest.fixture
    def conversation(self) -> Conversation:
        conversation = make_conversation()
        say(conversation, *[f"e{n}" for n in range(1, 13)])
        return conversation

    @pytest.fixture
    def fifth(self, web: Web, valkey: Valkey, conversation: Conversation) -> str:
        with open_stream(web, conversation) as client:
            client.wait_for(lambda c: len(c.rows) >= 12, "12 rows")
        return id_of(client, "e5")

    def test_a_and_query_the_rest_each_once_in_order(self, web: Web, conversation: Conversation, fifth: str) -> None:
        for arguments in ({"last_id": fifth}, {"query": f"?after={fifth}"}, {"query": "?after=5"}):
            with open_stream(web, conversation, **arguments) as client:
                client.wait_for_events("caught_up")
                assert texts(client) == [f"e{n}" for n in range(6, 13)]

    def test_the_header_is_newer_than_the_address(self, web: Web, conversation: Conversation, fifth: str) -> None:
        with open_stream(web, conversation, query="?after=2", last_id=fifth) as client:
            client.wait_for_events("caught_up")
            assert texts(client)[0] == "e6"

    def test_b_without_an_id_all(self, web: Web, valkey: Valkey, conversation: Conversation) -> None:
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            assert texts(client) == [f"e{n}" for n in range(1, 13)]
            sequence = [int(str(e["id"]).split("-")[0]) for e in client.rows]
            assert sequence == sorted(sequence)

    def test_c_nothing_new_is_said(self, web: Web, valkey: Valkey, conversation: Conversation) -> None:
        with open_stream(web, conversation, query="?after=12") as client:
            [event] = client.wait_for_events("caught_up")
            assert json.loads(event["data"])["last_id"] == f"12-{conversation.pk.hex[:8]}"
            assert texts(client) == []

    def test_c_the_stream_of_an_ended_plan_ends(self, web: Web, valkey: Valkey) -> None:
        plan = make_plan()
        say(plan, "done", plan_id=plan.pk)
        ExecutionPlan.objects.filter(pk=plan.pk).update(status="failed", ended_at=plan.created_at)
        with reading(web, f"/api/plans/{plan.pk}/stream/?after=1", Authorization=token_of(plan.owner)) as client:
            client.wait_for(lambda c: c.ended, "the end")
            assert [e["event"] for e in client.events] == ["stream_end"]

    def test_d_an_id_of_another_stream_gets_all(self, web: Web, conversation: Conversation, fifth: str) -> None:
        other = make_conversation(user=conversation.user, workspace=conversation.workspace)
        say(other, *[f"o{n}" for n in range(1, 9)])
        with open_stream(web, other, last_id=fifth) as client:
            client.wait_for_events("caught_up")
            assert client.events[0]["event"] == "resync"
            assert texts(client) == [f"o{n}" for n in range(1, 9)]

    def test_e_another_users_stream_is_not_there(self, web: Web, conversation: Conversation, fifth: str) -> None:
        status, body = web.get(
            f"/api/conversations/{conversation.pk}/stream/", Authorization=token_of(make_user()), Last_Event_ID=fifth
        )
        assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")

    @pytest.mark.parametrize("garbage", ["abc", "-1", "99999999", "5%0A6", "5-zzzzzzzz", "9" * 40])
    def test_f_garbage_gets_all_and_says_so(
        self, web: Web, valkey: Valkey, conversation: Conversation, garbage: str
    ) -> None:
        with open_stream(web, conversation, query=f"?after={garbage}") as client:
            client.wait_for_events("caught_up")
            assert client.events[0]["event"] == "resync"
            assert len(texts(client)) == 12

    def test_g_a_restart_of_the_server_changes_nothing(self, valkey: Valkey, conversation: Conversation) -> None:
        seen: list[str] = []
        last_id = None
        for _ in range(2):
            with Processes() as processes:
                server = start_web(processes, valkey.url, ping_s=0.5, pool=2)
                with open_stream(server, conversation, last_id=last_id) as client:
                    client.wait_for_events("caught_up")
                    seen += texts(client)[:5] if last_id is None else texts(client)
                    last_id = last_id or id_of(client, "e5")
        assert seen == [f"e{n}" for n in range(1, 13)]

    def test_h_no_gap_and_nothing_twice_while_events_are_written(
        self, web: Web, valkey: Valkey, conversation: Conversation, fifth: str
    ) -> None:
        def write(name: str) -> None:
            for n in range(60):
                say(conversation, f"{name}{n}")
            connection.close()

        writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for writer in writers:
            writer.start()
        seen: list[str] = []
        last_id = fifth
        while any(writer.is_alive() for writer in writers) or len(seen) < 7 + 180:
            with open_stream(web, conversation, last_id=last_id) as client:
                wanted = min(len(seen) + 25, 7 + 180) - len(seen)
                client.wait_for(lambda c, wanted=wanted: len(c.rows) >= wanted, "some more rows")
            rows = client.rows
            seen += [json.loads(row["data"])["text"] for row in rows]
            last_id = str(rows[-1]["id"])
        for writer in writers:
            writer.join()
        assert len(seen) == len(set(seen)) == 7 + 180
        assert [s for s in seen if s.startswith("a")] == [f"a{n}" for n in range(60)]

    def test_i_two_clients_see_all(self, web: Web, valkey: Valkey, conversation: Conversation) -> None:
        with open_stream(web, conversation) as one, open_stream(web, conversation) as two:
            for client in (one, two):
                client.wait_for_events("caught_up")
            say(conversation, "e13")
            for client in (one, two):
                client.wait_for(lambda c: "e13" in texts(c), "the new event")
                assert texts(client) == [f"e{n}" for n in range(1, 14)]


class TestLive:
    def test_a_late_reader_gets_the_open_text_at_offset_0_and_goes_on(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        live = LiveRound(conversation.pk, run="turn:7", round=1, fence=2)
        live.append("so far")
        live.tool(1, "search", "Searching")
        assert drain()
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            live.append(", and on")
            client.wait_for(lambda c: joined(c) == "so far, and on", "the text")
            first = json.loads(client.named("token")[0]["data"])
            assert (first["offset"], first["text"], first["run"], first["round"], first["fence"]) == (
                *(0, "so far", "turn:7", 1, 2),
            )
            assert json.loads(client.named("tool_start")[0]["data"])["tool"] == "search"
            assert all(event["id"] is None for event in client.events)

    def test_a_lower_fence_is_dropped(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            LiveRound(conversation.pk, run="turn:7", round=1, fence=5).restart()
            client.wait_for_events("round_restarted")
            for fence, text in ((4, "stale"), (5, "true")):  # as if Redis had lost who was newer
                signal = {"event": "token", "run": "turn:7", "round": 1, "fence": fence, "offset": 0, "text": text}
                from streaming.signals import client as redis_client

                redis_client().publish(conversation.stream.channel, json.dumps(signal))
            client.wait_for_events("token")
            assert joined(client) == "true"

    def test_a_round_whose_message_is_a_row_says_nothing_more(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        live = LiveRound(conversation.pk, run="turn:7", round=1, fence=1)
        live.append("# Title")
        assert drain()
        record = EventRecord(
            EventName.AI_MESSAGE, {"run": "turn:7", "round": 1, "text": "# Title\n<script>x</script>", "final": True}
        )
        Stream.objects.append(conversation.stream_id, [record], correlation_id="c9")
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            assert client.named("token") == []
            message = json.loads(client.named("ai_message")[0]["data"])
            assert message["html"].startswith("<h1>Title</h1>")
            assert "<script" not in message["html"]
            assert message["correlation_id"] == "c9"

    def test_redis_dead_rows_still_come_at_the_ping_and_live_text_after_it_is_back(
        self, web: Web, valkey: Valkey
    ) -> None:
        conversation = make_conversation()
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            valkey.kill()
            say(conversation, "without Redis")
            client.wait_for(lambda c: texts(c) == ["without Redis"], "the row, at a ping")
            with open_stream(web, conversation) as second:  # a new reader is served too
                second.wait_for_events("caught_up")
                assert texts(second) == ["without Redis"]
            valkey.start()
            live = LiveRound(conversation.pk, run="turn:7", round=1, fence=1)
            live.append("live again")
            client.wait_for(lambda c: joined(c) == "live again", "live text")

    def test_a_slow_reader_loses_deltas_but_no_row(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            live = LiveRound(conversation.pk, run="turn:7", round=1, fence=1)
            for n in range(400):  # more than the backlog holds, faster than one reader is served
                live.append(f"{n} " * 50)
                if n % 40 == 0:
                    say(conversation, f"row {n}")
            client.wait_for(lambda c: len(texts(c)) == 10, "all rows")
            client.wait_for(lambda c: joined(c) == "".join(f"{n} " * 50 for n in range(400)), "the whole text")


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

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:x"])
    def test_a_foreign_host_is_refused(self, web: Web, valkey: Valkey, host: str) -> None:
        conversation = make_conversation()
        path = f"/api/conversations/{conversation.pk}/stream/"
        status, body = web.get(path, Authorization=token_of(conversation.user), Host=host)
        assert (status, json.loads(body)["error"]["code"]) == (400, "host.invalid")

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


def session_of(user: User) -> str:
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    assert session.session_key
    return session.session_key


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
        wait_until(lambda: subscriptions(valkey, conversation) == 0, "the server has let the channel go")


def server_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle-streams'")
        return int(cursor.fetchone()[0])


def subscriptions(valkey: Valkey, conversation: Conversation) -> int:
    from streaming.signals import client as redis_client

    return int(redis_client().pubsub_numsub(conversation.stream.channel)[0][1])
