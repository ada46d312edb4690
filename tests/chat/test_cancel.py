"""Cancelling a turn closes the provider's connection at once (design § 5 "Cancel"), and history grows in a line."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from chat import services
from chat.models import HistorySummary, Message, Turn
from chat.runner import run_turn
from events.models import Event
from factory.agents import create_agent
from llm.ports import CancelToken
from llm.testing import Gate, ScriptedLLM, When, call, calls, say
from llm.types import LLMResponse, ModelRequest
from loop.condense import HEADING
from observability.models import AgentInteraction
from prompt.types import Limits
from tests.llm.samples import adapter
from tools.registry import Registry, tool


def test_cancel_closes_the_providers_connection_within_a_second(chat, openai_loopback):
    gate = Gate()
    server = openai_loopback(say("one two three four", gate=gate, gate_after=2))
    it = chat("not this model")
    llm = adapter("openai_chat", server.base_url.removesuffix("/v1"))
    turn = it.send("count")
    done: list[Turn] = []

    def agents(identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
        return create_agent(identity, llm=llm, mode=mode, tier=tier)

    def run() -> None:
        try:
            done.append(run_turn(turn.pk, agents=agents, clock=timezone.now))
        finally:
            connection.close()

    worker = threading.Thread(target=run)
    worker.start()
    received = server.wait_for_request(1)
    assert gate.reached.wait(10)
    services.cancel_turn(turn_id=turn.pk)
    assert received.closed_by_client.wait(3 * 1.0)
    worker.join(10)
    assert (done[0].status, done[0].stop_reason) == ("cancelled", "cancelled")
    assert done[0].answer.startswith("one")
    assert Message.objects.get(turn=turn, role="assistant").partial
    assert AgentInteraction.objects.get(owner_id=turn.pk).committed is False


def paid(turn: Turn) -> list[tuple[int | None, int | None, bool]]:
    """What is on record of the turn's model calls."""
    rows = AgentInteraction.objects.filter(owner_kind="turn", owner_id=turn.pk)
    return list(rows.values_list("input_tokens", "output_tokens", "committed"))


SPENT = {"input_tokens": 120, "output_tokens": 30}


def test_a_cancel_that_comes_with_the_completion_ends_once(chat):
    """Between the model's last word and the commit: the turn is cancelled, with all of its text."""
    it = chat("never asked first")
    turn = it.send("hi")

    def answer(_request: Any) -> Any:
        Turn.objects.request_cancel(turn.pk)
        return say("All of it.", usage=SPENT)

    it.llm.when(lambda _request: True, answer)
    done = it.run(turn)
    assert (done.status, done.answer) == ("cancelled", "All of it.")
    assert paid(turn) == [(120, 30, True)]
    assert services.cancel_turn(turn_id=turn.pk).status == "cancelled"
    ends = Event.objects.filter(stream=turn.stream_id, name="turn_ended")
    assert [event.payload["status"] for event in ends] == ["cancelled"]


class Late(ScriptedLLM):
    """The cancel reaches this process when the model has said its last word, and nothing is stored yet."""

    def call(self, request: ModelRequest, *, cancel: CancelToken | None = None, **options: Any) -> LLMResponse:
        response = super().call(request, cancel=cancel, **options)
        assert cancel is not None
        cancel.cancel("cancel")
        return response


@pytest.mark.parametrize("made", [[], [call("create_plan", goal="x", steps=[{"key": "a", "action": "Look"}])]])
def test_a_cancel_that_is_heard_behind_the_last_word_keeps_the_text_and_what_it_cost(chat, made):
    it = chat("unused")
    it.llm = Late([calls(*made, text="All of it.", usage=SPENT) if made else say("All of it.", usage=SPENT)])
    done = it.say("hi")
    assert (done.status, done.answer, done.plan_id) == ("cancelled", "All of it.", None)
    assert Message.objects.get(turn=done, role="assistant").partial
    assert paid(done) == [(120, 30, False)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("turns", [25, pytest.param(100, marks=pytest.mark.chaos)])
def test_storage_grows_in_a_line(chat, settings, turns):
    """The bytes of a turn of ten rounds do not depend on how many came before it."""
    settings.CAPSTAN_LOOP = {"window_turns": 6}
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look(at: str) -> str:
        """Look."""
        return f"{at}: " + "x" * 200

    rounds = 10
    script: list[Any] = [When(lambda request: not request.tools, "They looked around.", times=None)]
    for n in range(turns):
        script += [*[call("look", at=f"{n:03}-{r}") for r in range(rounds)], "ok"]
    it = chat(*script, tools=registry, limits=Limits(iterations=rounds + 1))
    sizes = [_bytes_of(it.say("go on")) for _ in range(turns)]
    assert it.llm.remaining == 0
    first, rest = sizes[0], sizes[1:]  # the first holds the snapshot
    assert max(rest) <= 1.1 * min(rest), sizes
    assert first > 0
    summaries = HistorySummary.objects.all()
    assert 0 < summaries.count() <= turns / 3, "condensed now and then, not each time"
    assert {len(summary.text) for summary in summaries} == {len(f"{HEADING}\nThey looked around.")}


def _bytes_of(turn: Turn) -> int:
    """All rows that a turn leaves, but the summary that it may have made of those before it."""
    queries = {
        "capstan_chat_message": ("turn_id = %s", turn.pk),
        "capstan_chat_turn": ("id = %s", turn.pk),
        "capstan_tools_toolexecution": ("owner_kind = 'turn' AND owner_id = %s", turn.pk),
        "capstan_observability_agentinteraction": (
            "round > 0 AND owner_kind = 'turn' AND owner_id = %s",
            turn.pk,
        ),
        "capstan_events_event": ("payload->>'run' = %s", f"turn:{turn.pk}"),
    }
    total = 0
    with connection.cursor() as cursor:
        for table, (where, key) in queries.items():
            cursor.execute(f"SELECT COALESCE(sum(pg_column_size(t.*)), 0) FROM {table} t WHERE {where}", [key])
            size = int(cursor.fetchone()[0])
            assert size > 0, table
            total += size
    return total
