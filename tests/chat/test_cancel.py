"""Cancelling a turn closes the provider's connection at once (design § 5 "Cancel"), and history grows in a line."""

from __future__ import annotations

import threading
from typing import Any

from django.db import connection
from django.utils import timezone

from chat import services
from chat.models import Message, Turn
from chat.runner import run_turn
from factory.agents import create_agent
from llm.testing import Gate, call, say
from observability.models import AgentInteraction
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


def test_a_cancel_that_comes_with_the_completion_ends_once(chat):
    """Between the model's last word and the commit: the turn is cancelled, with all of its text."""
    it = chat("never asked first")
    turn = it.send("hi")

    def answer(_request: Any) -> Any:
        Turn.objects.request_cancel(turn.pk)
        return say("All of it.")

    it.llm.when(lambda _request: True, answer)
    done = it.run(turn)
    assert (done.status, done.answer) == ("cancelled", "All of it.")
    assert services.cancel_turn(turn_id=turn.pk).status == "cancelled"


def test_storage_grows_in_a_line(chat):
    """The bytes of a turn do not depend on how many came before it."""
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look(at: str) -> str:
        """Look."""
        return f"{at}: " + "x" * 200

    turns, rounds = 24, 4
    script: list[Any] = []
    for n in range(turns):
        script += [*[call("look", at=f"{n:02}-{r}") for r in range(rounds)], "ok"]
    it = chat(*script, tools=registry)
    sizes = [_bytes_of(it.say("go on")) for _ in range(turns)]
    assert max(sizes[1:]) <= 1.1 * min(sizes[1:]), sizes  # the first holds the snapshot


def _bytes_of(turn: Turn) -> int:
    queries = {
        "capstan_chat_message": "turn_id = %s",
        "capstan_chat_turn": "id = %s",
        "capstan_tools_toolexecution": "owner_kind = 'turn' AND owner_id = %s",
        "capstan_observability_agentinteraction": "owner_kind = 'turn' AND owner_id = %s",
    }
    total = 0
    with connection.cursor() as cursor:
        for table, where in queries.items():
            cursor.execute(f"SELECT COALESCE(sum(pg_column_size(t.*)), 0) FROM {table} t WHERE {where}", [turn.pk])
            total += int(cursor.fetchone()[0])
    return total
