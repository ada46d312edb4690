"""A cancel that has committed defeats the unit that comes after it (design § 2.2), but for what happened outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from chat import services
from chat.models import Message, Turn
from llm.testing import call, calls
from observability.models import AgentInteraction
from tools.models import ToolExecution
from tools.registry import Registry, tool
from workspaces.models import Workspace

WRITE = "capstan_workspaces.add_workspace"


def elsewhere(work: Callable[[], object]) -> None:
    """Do it on another connection, and wait for it."""

    def body() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def somebody_cancels() -> None:
    elsewhere(lambda: Turn.objects.request_cancel(Turn.objects.get().pk))


@pytest.fixture
def tools():
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look() -> str:
        """Look."""
        somebody_cancels()
        return "seen"

    @tool(effect="write", permission=WRITE, registry=registry)
    def make(slug: str, cancelled: bool = True) -> str:
        """Make a workspace."""
        Workspace.objects.create(slug=slug, name=slug)
        if cancelled:
            somebody_cancels()
        return slug

    @tool(effect="external", permission=WRITE, registry=registry)
    def send(to: str) -> str:
        """Send a letter."""
        somebody_cancels()
        return f"sent to {to}"

    return registry


@pytest.mark.parametrize("asked", [call("make", slug="never"), call("look"), calls(call("look"), call("look"))])
def test_a_round_after_a_cancel_leaves_nothing(chat, tools, asked):
    it = chat(asked, "asked though cancelled", tools=tools)
    done = it.say("go")
    assert (done.status, done.stop_reason) == ("cancelled", "cancelled")
    assert not Workspace.objects.filter(slug="never").exists()
    assert not Message.objects.filter(turn=done, role="tool").exists()
    assert not ToolExecution.objects.exists()
    assert len(it.llm.requests) == 1
    paid = AgentInteraction.objects.get(owner_id=done.pk)
    assert (paid.committed, paid.error_code) == (False, "llm.cancelled")


def test_the_text_of_a_round_that_a_cancel_undid_is_kept_as_partial(chat, tools):
    done = chat(calls(call("make", slug="never"), text="Let me make it."), tools=tools).say("go")
    assert done.status == "cancelled"
    kept = Message.objects.get(turn=done, role="assistant")
    assert (kept.text, kept.partial) == ("Let me make it.", True)


def test_an_external_call_that_ran_is_on_record_and_what_stood_behind_it_does_not_run(chat, tools):
    it = chat(calls(call("send", to="ann"), call("make", slug="never", cancelled=False)), "no", tools=tools)
    done = it.say("go")
    assert done.status == "cancelled"
    row = ToolExecution.objects.get()
    assert (row.tool_name, row.status, row.result) == ("send", "succeeded", "sent to ann")
    assert [m.tool_name for m in Message.objects.filter(turn=done, role="tool")] == ["send"]
    assert not Workspace.objects.filter(slug="never").exists()
    assert len(it.llm.requests) == 1


def test_a_turn_ended_from_outside_leaves_no_call_as_started(chat):
    class Killed(BaseException):
        """Ends the process, as far as everything above the tool can tell."""

    registry = Registry()

    @tool(effect="external", permission=WRITE, registry=registry)
    def send() -> str:
        """Send a letter."""
        raise Killed

    it = chat(call("send"), tools=registry)
    turn = it.send("go")
    with pytest.raises(Killed):
        it.run(turn)
    assert ToolExecution.objects.get().status == "started"
    Turn.objects.filter(pk=turn.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert services.cancel_turn(turn_id=turn.pk).status == "cancelled"
    row = ToolExecution.objects.get()
    assert (row.status, "not known" in row.error) == ("unknown", True)
