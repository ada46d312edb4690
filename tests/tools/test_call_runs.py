"""Calls at doors, run by a real worker once somebody has decided, or once their process is gone (design § 8)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import override_settings
from django.utils import timezone

from catalog.models import Repository
from events.models import Stream
from factory.executors import build_executor
from factory.identities import identity
from tests.support.processes import Processes
from tests.tools import mcp_peer
from tools import mcp_tools, services
from tools.doors import CallResult, call_tool, fail_spent_calls, run_call
from tools.executor import ToolExecutor
from tools.mcp_models import McpServer
from tools.models import ToolCallRun, ToolExecution
from tools.registry import registry
from tools.settings import McpCommand
from workspaces.models import Membership, User, Workspace


@pytest.fixture
def analyst(workspace: Workspace) -> User:
    user = User.objects.create_user("ana", password=None)
    Membership.objects.create(user=user, workspace=workspace)
    user.user_permissions.add(*Permission.objects.filter(codename__in=("change_element", "decide_approval")))
    return User.objects.get(pk=user.pk)


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until another process has done it."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def status(call: ToolCallRun) -> str:
    call.refresh_from_db()
    return call.status


def test_a_worker_runs_a_call_once_it_is_approved(processes: Processes, analyst: User, workspace: Workspace) -> None:
    processes.worker()
    planner = identity("planner")
    guarded = ToolExecutor(registry(), replace(planner, approvals={"annotate_element": "call"}), mode="workflow")
    asked = call_tool(
        executor=guarded,
        user=analyst,
        workspace=workspace,
        name="annotate_element",
        arguments={"key": "module:nowhere", "note": "n"},
        door="rest",
        correlation_id="c-1",
        clock=timezone.now,
    )
    assert asked.approval is not None
    services.decide(approval_id=asked.approval.pk, user=analyst, decision="approve", now=timezone.now())
    until(lambda: status(asked.call) in ("completed", "failed"))
    row = ToolExecution.objects.get()
    assert (row.status, row.owner_id, row.correlation_id) == (
        "failed",
        asked.call.pk,
        "c-1",
    )  # there is no such element
    assert Repository.objects.count() == 0


def left_behind(analyst: User, workspace: Workspace, *, attempts: int = 1) -> ToolCallRun:
    """A call whose process died while it ran."""
    return ToolCallRun.objects.create(
        workspace=workspace,
        stream=Stream.objects.create(workspace=workspace),
        correlation_id="c-1",
        status="running",
        lease_owner="gone",
        lease_until=timezone.now() - timedelta(minutes=1),
        attempts=attempts,
        user=analyst,
        identity="planner",
        mode="workflow",
        door="rest",
        tool_name="catalog_overview",
        arguments={},
    )


def test_a_call_whose_process_died_is_finished_by_a_worker(
    processes: Processes, analyst: User, workspace: Workspace
) -> None:
    from worker.recovery import sweep

    call = left_behind(analyst, workspace)
    processes.worker()
    assert sweep(now=timezone.now()).sent == 1
    until(lambda: status(call) == "completed")
    assert ToolExecution.objects.get().status == "succeeded"


def test_a_killed_process_leaves_an_external_call_to_a_person(
    processes: Processes, analyst: User, workspace: Workspace, tmp_path: Path
) -> None:
    analyst.user_permissions.add(Permission.objects.get(codename="use_mcp"))
    server = McpServer.objects.create(workspace=workspace, name="peer", transport="stdio", command="peer")
    commands = {"peer": {"argv": [sys.executable, str(Path(mcp_peer.__file__))]}}
    _approve(server, commands, by=analyst)
    world = tmp_path / "world"
    caller = processes.manage(
        "call_tool",
        "mcp__peer__slow",
        json.dumps({"path": str(world)}),
        "--user=ana",
        environment={"MCP_COMMANDS": json.dumps(commands), "CAPSTAN_LEASE_SECONDS": "1"},
    )
    until(world.exists, 60)
    caller.kill()
    call = ToolCallRun.objects.get()
    assert ToolExecution.objects.get().status == "started"

    done: list[CallResult | None] = []

    def executor_of(_: ToolCallRun) -> ToolExecutor:
        return build_executor("planner", mode="workflow", workspace=workspace)

    until(lambda: bool(done.append(run_call(call.pk, executor_of=executor_of, clock=timezone.now)) or done[-1]))
    assert done[-1] is not None
    assert done[-1].approval is not None
    assert done[-1].approval.question == "happened"
    assert ToolExecution.objects.get().status == "unknown"
    assert status(call) == "waiting_approval"
    assert world.read_text() == "happened\n", "it was not made a second time"


def _approve(server: McpServer, commands: dict[str, Any], *, by: User) -> None:
    """Approve what the peer offers, to be called without asking."""
    with override_settings(CAPSTAN_TOOLS={"mcp_commands": {"peer": McpCommand(argv=tuple(commands["peer"]["argv"]))}}):
        mcp_tools.refresh(server=server, now=timezone.now())
    mcp_tools.approve(tools=list(server.tools.all()), user=by)
    server.tools.update(approval="never")
    McpServer.objects.changed(server.pk)


def test_a_call_that_never_gets_further_fails(analyst: User, workspace: Workspace) -> None:
    call = left_behind(analyst, workspace, attempts=5)
    assert fail_spent_calls() == 1
    assert status(call) == "failed"
    assert call.error == "run.attempts_used_up"


def test_the_executor_of_a_workspace_offers_its_identitys_tools(workspace: Workspace) -> None:
    executor = build_executor("planner", mode="conversation", workspace=workspace)
    assert {"annotate_element", "read_result", "create_plan"} <= executor.exposed_names()
    assert "get_element" not in executor.exposed_names()
