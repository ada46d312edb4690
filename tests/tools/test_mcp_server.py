"""Our tools over MCP, called by the SDK's own client over both transports (design § 8)."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from rest_framework.authtoken.models import Token

from tests.support.processes import Processes, process_environment
from tools.models import ToolCallRun, ToolExecution
from workspaces.models import Membership, User, Workspace


@pytest.fixture
def analyst(workspace: Workspace) -> User:
    """Somebody who may read the catalogue, and not write to it."""
    user = User.objects.create_user("ana", password=None)
    Membership.objects.create(user=user, workspace=workspace)
    return user


@pytest.fixture
def web(processes: Processes) -> str:
    return processes.web()[1]


def with_client(transport: Any, body: Callable[[Client], Awaitable[Any]], mode: str = "auto") -> Any:
    async def run() -> Any:
        with anyio.fail_after(60):
            async with Client(transport, mode=mode) as client:
                return await body(client)

    return anyio.run(run)


def over_http(url: str, key: str, body: Callable[[Client], Awaitable[Any]], *, mode: str = "auto") -> Any:
    headers = {"Authorization": f"Bearer {key}", "X-Correlation-ID": "from-client"}

    async def run() -> Any:
        with anyio.fail_after(60):
            async with (
                httpx2.AsyncClient(headers=headers, timeout=30) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            ):
                return await body(client)

    return anyio.run(run)


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def overview(client: Client) -> Any:
    return await client.call_tool("catalog_overview", {})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_mcp_client_lists_and_calls_over_http(mode: str, web: str, analyst: User) -> None:
    key = Token.objects.create(user=analyst).key

    async def body(client: Client) -> tuple[set[str], Any, Any, Any]:
        return (
            await names(client),
            await overview(client),
            await client.call_tool("annotate_element", {"key": "module:a", "note": "n"}),
            await client.call_tool("get_element", {"name": "x"}),
        )

    listed, read, refused, wrong = over_http(f"{web}/mcp", key, body, mode=mode)
    assert {"catalog_overview", "search_elements", "get_element"} <= listed
    assert "annotate_element" not in listed  # he does not hold its permission
    assert read.is_error is False
    assert read.structured_content == {"repositories": {}, "packages": []} or "repositories" in read.structured_content
    assert refused.is_error is True
    assert "does not hold the permission" in refused.content[0].text
    assert "key: is required" in wrong.content[0].text
    rows = ToolExecution.objects.order_by("pk").values_list("tool_name", "status", "owner_kind", "user__username")
    assert list(rows) == [
        ("catalog_overview", "succeeded", "call", "ana"),
        ("annotate_element", "blocked", "call", "ana"),
        ("get_element", "blocked", "call", "ana"),
    ]
    assert set(ToolExecution.objects.values_list("correlation_id", flat=True)) == {"from-client"}
    assert set(ToolCallRun.objects.values_list("door", flat=True)) == {"mcp"}


def test_http_asks_for_a_token_an_origin_and_a_workspace(web: str, analyst: User) -> None:
    key = Token.objects.create(user=analyst).key
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

    def ask(path: str = "/mcp", **headers: str) -> int:
        sent = {
            "Accept": "application/json, text/event-stream",
            **{name.replace("_", "-"): headers[name] for name in headers},
        }
        return httpx.post(f"{web}{path}", json=body, headers=sent, timeout=30).status_code

    token = f"Bearer {key}"
    assert ask() == 401
    assert ask(Authorization="Bearer wrong") == 401
    assert ask(Authorization=token) == 200
    assert ask(Authorization=token, Origin=web) == 200
    assert ask(Authorization=token, Origin="https://evil.example") == 403
    assert ask(Authorization=token, Host="evil.example") == 403
    assert ask("/mcp?workspace=nowhere", Authorization=token) == 400
    assert ask("/mcp?mode=odd", Authorization=token) == 400
    User.objects.filter(pk=analyst.pk).update(is_active=False)
    assert ask(Authorization=token) == 401


def test_an_mcp_client_lists_and_calls_over_stdio(transactional_db: None, analyst: User) -> None:
    environment = process_environment()
    server = StdioServerParameters(
        command=sys.executable, args=["manage.py", "mcp_server", "--user=ana"], env=environment
    )

    async def body(client: Client) -> tuple[set[str], Any]:
        return await names(client), await overview(client)

    listed, read = with_client(server, body)
    assert "catalog_overview" in listed
    assert read.is_error is False
    assert ToolExecution.objects.get().user == analyst


def test_a_stdio_server_needs_a_user_that_there_is(analyst: User, workspace: Workspace) -> None:
    for arguments in ({"user": "nobody"}, {"user": "ana", "workspace": "elsewhere"}):
        with pytest.raises(CommandError):
            call_command("mcp_server", **arguments)


def test_manage_py_call_tool(analyst: User, workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("call_tool", "--user=ana")
    assert "catalog_overview\t" in capsys.readouterr().out
    call_command("call_tool", "catalog_overview", "--user=ana")
    assert "repositories" in json.loads(capsys.readouterr().out)
    for arguments in (["annotate_element", '{"key": "module:a", "note": "n"}'], ["nothing"], ["get_element", "[]"]):
        with pytest.raises(CommandError):
            call_command("call_tool", *arguments, "--user=ana")
    analyst.user_permissions.add(Permission.objects.get(codename="change_element"))
    with pytest.raises(CommandError, match="not exposed in conversation mode"):
        call_command("call_tool", "get_element", '{"key": "module:a"}', "--user=ana", "--mode=conversation")
    assert list(ToolExecution.objects.order_by("pk").values_list("status", flat=True)) == [
        "succeeded",
        "blocked",
        "blocked",
        "blocked",
    ]
