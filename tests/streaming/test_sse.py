"""The stream as a client gets it: real bytes from a real server, rows from PostgreSQL, signals from Valkey."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from django.db import connection

from chat.models import Conversation
from events.models import EventRecord, Stream
from events.types import EventName
from plan.models import ExecutionPlan
from streaming.live import drain
from streaming.signals import LiveRound
from tests.fixtures.cases import sse_reference
from tests.streaming.servers import Valkey, Web, reading, start_web
from tests.streaming.talk import id_of, joined, open_stream, say, texts, token_of
from tests.support.processes import Processes
from tests.support.runs import make_conversation, make_plan, make_user

pytestmark = pytest.mark.django_db(transaction=True)

CASE = json.loads((Path(__file__).parents[1] / "fixtures/cases/18_stream_outbound.json").read_text())


class TestWire:
    """Case H/18, part a."""

    def test_each_payload_arrives_as_it_was(self, web: Web, valkey: Valkey) -> None:
        payloads: list[str] = CASE["part_a"]["payloads"]
        stored = [payload.replace("\0", "") for payload in payloads]  # PostgreSQL has no NUL; live text has
        conversation = make_conversation()
        ids = say(conversation, *stored)
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            for number, payload in enumerate(payloads, start=1):
                live = LiveRound(conversation.pk, run="turn:1", round=number, fence=1)
                for start in range(0, len(payload), 4_000):
                    live.append(payload[start : start + 4_000])
                live.append("|")
                client.wait_for(lambda c, n=number: joined(c, n).endswith("|"), f"live text {number}")
        assert texts(client) == stored
        assert [joined(client, number) for number in range(1, len(payloads) + 1)] == [f"{each}|" for each in payloads]
        assert {event["event"] for event in client.events} == {"turn_queued", "caught_up", "token"}
        assert [event["id"] for event in client.rows] == [f"{seq}-{conversation.pk.hex[:8]}" for seq in ids]

    @pytest.mark.parametrize("name", CASE["part_a"]["event_names_if_a_user_can_choose_them"])
    def test_an_event_name_cannot_write_fields(self, name: str) -> None:
        from streaming.wire import encode

        [event] = sse_reference.parse(encode(name, {"a": 1}, event_id="3-abcdefab"))
        assert (event["data"], event["id"]) == ('{"a":1}', "3-abcdefab")
        assert event["event"] == (name if name == "plain" else "message")


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

    def test_f_garbage_gets_all_and_says_so(self, web: Web, valkey: Valkey, conversation: Conversation) -> None:
        for garbage in ("abc", "-1", "99999999", "5%0A6", "5-zzzzzzzz", "9" * 40):
            with open_stream(web, conversation, query=f"?after={garbage}") as client:
                client.wait_for_events("caught_up")
                assert client.events[0]["event"] == "resync", garbage
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

    def test_a_late_reader_hears_of_a_wait_that_is_not_over(self, web: Web, valkey: Valkey) -> None:
        conversation = make_conversation()
        over = LiveRound(conversation.pk, run="turn:6", round=1, fence=1)
        over.waiting("rate limited", 1, 0.0)
        live = LiveRound(conversation.pk, run="turn:7", round=1, fence=2)
        live.waiting("rate limited", 2, 30.0)
        assert drain()
        with open_stream(web, conversation) as client:
            client.wait_for_events("caught_up")
            [event] = client.named("rate_limit")
            told = json.loads(event["data"])
            assert (event["id"], told["run"], told["attempt"], 20 < told["delay_s"] <= 30) == (None, "turn:7", 2, True)

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
