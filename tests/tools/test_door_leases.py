"""A call at a door keeps its lease while it writes; one that lost it is answered for by its new owner."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection
from django.db.models import F
from django.utils import timezone

from prompt.types import AgentIdentity
from tools.doors import CallResult, call_tool
from tools.executor import ToolExecutor
from tools.models import ToolCallRun
from tools.registry import Registry, tool
from tools.runs import ClockTimestamp
from workspaces.models import User, Workspace

ADD = "capstan_workspaces.add_workspace"
LEASE_S = 0.6
local = Registry()
never = threading.Event()


def elsewhere(work: Callable[[], None]) -> None:
    """Do it on another connection, and wait for it."""

    def body() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(10)


@tool(effect="write", permission=ADD, registry=local)
def slow_write(slug: str) -> bool:
    """Write for longer than a lease lasts; whether the lease is alive then."""
    Workspace.objects.create(slug=slug, name=slug)
    never.wait(4 * LEASE_S)
    alive: list[bool] = []
    elsewhere(lambda: alive.append(ToolCallRun.objects.filter(lease_until__gt=ClockTimestamp()).exists()))
    return alive[0]


@tool(effect="write", permission=ADD, registry=local)
def overtaken(slug: str) -> bool:
    """Write, while another process takes the call over."""
    Workspace.objects.create(slug=slug, name=slug)
    elsewhere(lambda: ToolCallRun.objects.update(fence=F("fence") + 1) and None)
    return True


def called(name: str, user: User, workspace: Workspace) -> CallResult:
    who = AgentIdentity(name="tester", system_tone="", allowed_tools=frozenset({"slow_write", "overtaken"}))
    return call_tool(
        executor=ToolExecutor(local, who, mode="workflow"),
        user=user,
        workspace=workspace,
        name=name,
        arguments={"slug": "made"},
        door="rest",
        correlation_id="c-1",
        clock=timezone.now,
    )


def test_a_slow_write_keeps_its_lease(settings, workspace: Workspace, member: User) -> None:
    settings.CAPSTAN_LEASE_SECONDS = LEASE_S
    assert called("slow_write", member, workspace).envelope == {"success": True, "result": True, "error": None}


def test_a_call_that_goes_on_elsewhere_has_no_answer_yet(workspace: Workspace, member: User) -> None:
    done = called("overtaken", member, workspace)
    assert (done.envelope, done.approval, done.call.status) == (None, None, "running")
    assert not Workspace.objects.filter(slug="made").exists()
