"""A result too big for the model is whole where people look it up."""

from __future__ import annotations

import pytest
from django.test import Client

from chat.models import Turn
from llm.testing import call
from tools.models import StoredResult, ToolExecution
from tools.registry import Registry, tool


@pytest.fixture
def big(chat) -> tuple[Turn, ToolExecution]:
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def rows() -> list[dict[str, object]]:
        """Many rows."""
        return [{"number": n, "text": "x" * 40} for n in range(3000)]

    turn = chat(call("rows"), "seen", tools=registry).say("go")
    row = ToolExecution.objects.get()
    assert (row.result, StoredResult.objects.count()) == (None, 1)
    return turn, row


def test_the_page_of_a_call_shows_it(big):
    turn, _row = big
    client = Client()
    client.force_login(turn.user)
    assert "&quot;number&quot;: 0" in client.get(f"/calls/turn:{turn.pk}/1/1/").content.decode()


def test_the_api_gives_it(big):
    turn, row = big
    client = Client()
    client.force_login(turn.user)
    given = client.get(f"/api/tool-executions/{row.pk}/").json()["result"]
    assert (len(given), given[-1]["number"]) == (3000, 2999)
