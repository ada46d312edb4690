"""Fifty chats and writes at once: no turn is told a snapshot older than the last commit before it began (CAP-038).

That they are at once is by construction: the first answer waits for a write's commit, the first write for a question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

import pytest
from django.db import connection, transaction
from django.utils import timezone

from chat import services
from chat.runner import run_turn
from context.models import ScopeVersion
from context.registry import SnapshotScope, builders, snapshot_builder
from factory.agents import create_agent
from llm.testing import ScriptedLLM, say
from llm.types import ModelRequest
from tests.support.runs import make_user, make_workspace
from workspaces.models import Workspace

T = TypeVar("T")
CHATS, WRITES = 50, 25


@pytest.fixture
def counted(redis: Any) -> Iterator[None]:
    """The snapshot holds what the writers count up."""
    kept = dict(builders)
    builders.clear()

    @snapshot_builder("count")
    def count(scope: SnapshotScope) -> dict[str, Any]:
        return {"n": int(Workspace.objects.values_list("name", flat=True).get(pk=scope.workspace.pk))}

    yield
    builders.clear()
    builders.update(kept)


@pytest.mark.django_db(transaction=True)
def test_fifty_chats_and_writes_at_once(counted: None) -> None:
    user = make_user()
    workspace = make_workspace(user)
    Workspace.objects.filter(pk=workspace.pk).update(name="0")
    keys = [services.create_conversation(user=user, workspace=workspace, now=timezone.now()).pk for _ in range(CHATS)]

    def alone(work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            connection.close()

    asked_one, wrote_one = Event(), Event()
    under_way: list[Any] = []  # chats between what they read and their end
    beside: list[int] = []  # by write: how many chats were under way when it had committed

    def write() -> None:
        assert asked_one.wait(60)
        with transaction.atomic():
            row = Workspace.objects.select_for_update().get(pk=workspace.pk)
            Workspace.objects.filter(pk=row.pk).update(name=str(int(row.name) + 1))
            ScopeVersion.objects.bump([workspace.pk])
        beside.append(len(under_way))
        wrote_one.set()

    def answer(_request: ModelRequest) -> Any:
        asked_one.set()
        assert wrote_one.wait(60)
        return say("ok")

    def chat(key: Any) -> tuple[int, int]:
        llm = ScriptedLLM([answer])
        under_way.append(key)
        committed = int(Workspace.objects.values_list("name", flat=True).get(pk=workspace.pk))
        turn = services.send_message(
            conversation_id=key,
            author=user,
            text="How many?",
            respond_async=False,
            correlation_id="c",
            now=timezone.now(),
        )

        def agents(name: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
            return create_agent(name, llm=llm, mode=mode, tier=tier)

        assert run_turn(turn.pk, agents=agents, clock=timezone.now).status == "completed"
        under_way.remove(key)
        told = json.loads(llm.requests[0].messages[-1].content.split("<context>\n")[1].split("\n</context>")[0])
        return committed, told["snapshot"]["count"]["n"]

    with ThreadPoolExecutor(16) as pool:
        asked, written = [], []
        for number, key in enumerate(keys):
            asked.append(pool.submit(alone, lambda key=key: chat(key)))
            if number % (CHATS // WRITES) == 0:
                written.append(pool.submit(alone, write))
        pairs = [one.result(60) for one in asked]
        for one in written:
            one.result(60)
    assert [pair for pair in pairs if pair[1] < pair[0]] == []
    assert ScopeVersion.objects.current(workspace.pk) == WRITES == len(beside)
    assert max(beside) > 0, "a write committed while a chat was under way"
