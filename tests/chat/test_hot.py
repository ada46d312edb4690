"""A round of reads in one statement leaves what a unit leaves (`chat.hot`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.forms.models import model_to_dict
from django.test.utils import CaptureQueriesContext

from chat.models import Message, Turn
from chat.transcript import ChatTranscript
from events.models import Event
from events.types import EventName
from llm.testing import call, calls
from llm.types import ProviderBlocks
from observability.models import AgentInteraction
from tools.models import ToolExecution
from tools.registry import Registry, tool
from tools.runs import RunRef
from tools.units import in_unit

REMOVED = {"id", "turn", "parent", "conversation", "created_at", "ended_at", "owner_id", "conversation_id", "stream",
           "idempotency_key", "latency_ms", "first_token_ms", "duration_ms", "workspace", "user", "message_id",
           "turn_id", "run"}  # fmt: skip


@pytest.fixture
def reads():
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look(at: str, deep: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Look."""
        if at == "fail":
            raise ValueError("nothing there")
        return None if at == "none" else {"seen": at, "ünïcode": ["✓", 1.5, None, {"zz": 1, "a": 2}]}

    return registry


ASKED = (call("look", at="a", deep={"zz": 1, "b": {"y": [1.0, 2]}}), call("look", at="none"), call("look", at="fail"))


def plain(row: Any) -> Any:
    values = row if isinstance(row, dict) else model_to_dict(row)
    return {k: plain(v) if k == "payload" else v for k, v in values.items() if k not in REMOVED}


def left(turn: Turn) -> dict[str, list[Any]]:
    rows = {
        "messages": Message.objects.filter(turn=turn).order_by("round", "position"),
        "ledger": ToolExecution.objects.filter(owner_id=turn.pk).order_by("position"),
        "facts": AgentInteraction.objects.filter(owner_id=turn.pk).order_by("pk"),
        "events": Event.objects.filter(stream=turn.stream_id).order_by("seq"),
    }
    return {name: [plain(row) for row in found] for name, found in rows.items()}


class LongWay:
    """A turn's transcript without the hot path."""

    def __init__(self, inner: ChatTranscript) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "store_read_round":
            raise AttributeError(name)
        return getattr(self._inner, name)


def long_way(it: Any) -> Turn:
    """The same turn, round by round in units."""
    turn = it.send("go")
    agent = it.agents("planner")
    claim = Turn.objects.claim(turn.pk, owner="test")
    turn = Turn.objects.select_related("workspace", "user", "question").get(pk=turn.pk)
    run = RunRef.of(claim)
    transcript = ChatTranscript(run=run, turn=turn, identity=agent.identity, model="scripted")
    in_unit(run, lambda unit: unit.record(EventName.TYPING, run=f"turn:{turn.pk}", turn_id=turn.pk))
    agent.handle_message(turn.user_id, "go", transcript=LongWay(transcript))
    return Turn.objects.get(pk=turn.pk)


def test_the_hot_path_leaves_the_same_rows_and_events_as_a_unit(chat, reads):
    answer = calls(*ASKED, text="I look.", thinking="hm")
    made = replace(
        answer.response, blocks=ProviderBlocks(provider="p", model="scripted", items=[{"zz": 1, "a": {"c": 1, "b": 2}}])
    )
    quick = chat(replace(answer, response=made), "done", tools=reads)
    slow = chat(replace(answer, response=made), "done", tools=reads)
    with CaptureQueriesContext(connection) as asked:
        one = quick.say("go")
    two = long_way(slow)
    assert any("jsonb_to_recordset" in query["sql"] for query in asked.captured_queries)
    assert left(one) == left(two)
    sent = [it.llm.requests[1].messages[1:] for it in (quick, slow)]  # the question's context names each workspace
    assert sent[0] == sent[1]


def test_what_was_sent_is_what_the_rows_say(chat, reads):
    it = chat(*[calls(*ASKED) for _ in range(3)], "done", "next", tools=reads)
    turn = it.say("go")
    it.say("and?")
    during, after = it.llm.requests[3].messages, it.llm.requests[4].messages
    assert [replace(m, cache=False) for m in after[: len(during)]] == [replace(m, cache=False) for m in during]
    assert turn.status == "completed"


def test_a_lost_lease_writes_nothing(chat, reads):
    it = chat(lambda request: stolen(turn) or call("look", at="a"), tools=reads)
    turn = it.send("go")
    done = it.run(turn)
    assert (done.status, done.fence) == ("running", 99)
    assert Message.objects.filter(turn=turn).count() == 1
    assert ToolExecution.objects.count() == 0
    assert list(Event.objects.filter(stream=turn.stream_id).values_list("name", flat=True)) == ["turn_queued", "typing"]
    assert AgentInteraction.objects.get(owner_id=turn.pk).committed is False


def stolen(turn: Turn) -> None:
    Turn.objects.filter(pk=turn.pk).update(fence=99)
