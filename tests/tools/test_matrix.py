"""Every door holds every policy: one cell a test, read from the ledger and the approvals that the door left behind.

doors      chat (a turn), worker (a step of a plan), REST, MCP, the command line
policies   exposure, permission, approval, identity, budget; each cell also asks for the ledger's row
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.test import Client as Browser
from django.utils import timezone
from mcp import Client

from chat import services
from chat.runner import run_turn
from factory.agents import create_agent
from factory.executors import build_executor
from llm.testing import ScriptedLLM, call
from tests.support.plans import hold_plan, llm_step
from tests.support.runs import make_conversation
from tools.mcp_server import Caller, build_server
from tools.models import Approval, ToolExecution
from worker.runner import execute_plan
from workspaces.models import Membership, User, Workspace

Door = Callable[[User, Workspace, str, str, dict[str, Any]], None]


def chat(user: User, workspace: Workspace, mode: str, name: str, arguments: dict[str, Any]) -> None:
    turn = services.send_message(
        conversation_id=make_conversation(user=user, workspace=workspace).pk,
        author=user,
        text="do it",
        respond_async=False,
        correlation_id="matrix",
        now=timezone.now(),
    )
    llm = ScriptedLLM([call(name, **arguments), "done"])
    run_turn(turn.pk, agents=partial(create_agent, llm=llm), clock=timezone.now)


def worker(user: User, workspace: Workspace, mode: str, name: str, arguments: dict[str, Any]) -> None:
    plan = hold_plan(llm_step("only"), owner=user, workspace=workspace)
    llm = ScriptedLLM([call(name, **arguments), "done"])
    execute_plan(plan_id=plan.pk, agents=partial(create_agent, llm=llm), clock=timezone.now)


def rest(user: User, workspace: Workspace, mode: str, name: str, arguments: dict[str, Any]) -> None:
    browser = Browser()
    browser.force_login(user)
    body = {"arguments": arguments, "mode": mode, "workspace": workspace.slug}
    assert browser.post(f"/api/tools/{name}/", body, content_type="application/json").status_code in (200, 202)


def mcp(user: User, workspace: Workspace, mode: str, name: str, arguments: dict[str, Any]) -> None:
    server = build_server(
        caller_of=lambda _: Caller(user=user, workspace=workspace),
        executor_of=lambda space: build_executor("planner", mode=mode, workspace=space),  # type: ignore[arg-type]
        clock=timezone.now,
    )

    async def body() -> None:
        async with Client(server) as client:
            await client.call_tool(name, arguments)

    anyio.run(body)


def command(user: User, workspace: Workspace, mode: str, name: str, arguments: dict[str, Any]) -> None:
    with suppress(CommandError):
        call_command(
            "call_tool",
            name,
            json.dumps(arguments),
            f"--user={user.username}",
            f"--workspace={workspace.slug}",
            f"--mode={mode}",
        )


DOORS: dict[str, Door] = {"chat": chat, "worker": worker, "rest": rest, "mcp": mcp, "command": command}
each_door = pytest.mark.parametrize("door", DOORS)

ANNOTATE = {"key": "module:a", "note": "n"}


@pytest.fixture
def ana(workspace: Workspace) -> User:
    user = User.objects.create_user("ana", password=None)
    Membership.objects.create(user=user, workspace=workspace)
    user.user_permissions.add(Permission.objects.get(codename="change_element"))
    return User.objects.get(pk=user.pk)


def rows() -> list[tuple[str, str, str]]:
    return list(ToolExecution.objects.order_by("pk").values_list("tool_name", "status", "error"))


@each_door
def test_exposure(door: str, ana: User, workspace: Workspace) -> None:
    DOORS[door](ana, workspace, "conversation", "get_element", {"key": "module:a"})
    ((name, status, error),) = rows()
    if door == "worker":  # workflow exposes all of the identity's
        assert status == "failed"
    else:
        assert (name, status, error) == (
            "get_element",
            "blocked",
            "tool 'get_element' not exposed in conversation mode",
        )


@each_door
def test_permission(door: str, ana: User, workspace: Workspace) -> None:
    ana.user_permissions.clear()
    DOORS[door](User.objects.get(pk=ana.pk), workspace, "workflow", "annotate_element", ANNOTATE)
    ((_, status, error),) = rows()
    assert (status, "does not hold the permission" in error) == ("blocked", True)


@each_door
def test_approval(door: str, ana: User, workspace: Workspace, settings: Any) -> None:
    settings.CAPSTAN_APPROVALS = {"planner": {"annotate_element": "call"}}
    DOORS[door](ana, workspace, "workflow", "annotate_element", ANNOTATE)
    approval = Approval.objects.get()
    assert (approval.status, approval.arguments, approval.requested_by) == ("pending", ANNOTATE, ana)
    assert rows() == []


@each_door
def test_identity(door: str, ana: User, workspace: Workspace) -> None:
    other = User.objects.create_superuser("other", password=None)
    DOORS[door](ana, workspace, "workflow", "catalog_overview", {"user_id": other.pk, "scope_id": "999"})
    assert rows() == [("catalog_overview", "succeeded", "")]
    row = ToolExecution.objects.get()
    assert (row.user, row.workspace, row.arguments) == (ana, workspace, {})


@each_door
def test_budget(door: str, ana: User, workspace: Workspace, settings: Any) -> None:
    settings.CAPSTAN_TOOLS = {"user_day_calls": 1}
    command(ana, workspace, "workflow", "catalog_overview", {})
    DOORS[door](ana, workspace, "workflow", "catalog_overview", {})
    (_, status, error) = rows()[-1]
    assert (status, "budget of 1 tool calls a day is used up" in error) == ("blocked", True)
