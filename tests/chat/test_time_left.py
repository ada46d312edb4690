"""A turn has its five minutes once, however many owners it has (design § 5.3)."""

from __future__ import annotations

import pytest
from django.utils import timezone

from chat.models import Turn
from llm.errors import RateLimitError
from llm.testing import call
from observability.models import AgentInteraction
from tools.models import ToolExecution
from tools.queries import seconds_used
from tools.registry import Registry, tool


@pytest.fixture
def tools():
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look() -> str:
        """Look."""
        return "seen"

    return registry


def test_a_turn_that_goes_on_has_only_the_time_that_is_left(chat, tools):
    it = chat(call("look"), RateLimitError(retry_after_s=40), "In the end.", tools=tools)
    turn = it.say("go")
    assert turn.status == "queued"
    AgentInteraction.objects.filter(owner_id=turn.pk, round=1).update(latency_ms=4 * 60_000)
    ToolExecution.objects.update(duration_ms=90_000)
    assert seconds_used("turn", turn.pk) >= 5.5 * 60
    Turn.objects.update(not_before=timezone.now())
    done = it.run(turn)
    assert (done.status, done.stop_reason, done.answer) == ("completed", "wall_clock", "In the end.")
    assert it.llm.requests[-1].tool_choice == "none"


def test_reads_side_by_side_count_once(chat, tools):
    turn = chat(call("look"), "done", tools=tools).say("go")
    row = ToolExecution.objects.get()
    for position, (effect, seconds) in enumerate([("read", 7), ("write", 5)], start=2):
        row.pk, row.position, row.effect, row.duration_ms = None, position, effect, seconds * 1000
        row._state.adding = True
        row.save()
    AgentInteraction.objects.update(latency_ms=1000)
    assert seconds_used("turn", turn.pk) == 7 + 5 + 2
