"""Our tools for other agents, over MCP: the same executor, the same policies, a call is its own run (design § 8).

Imported only where a server starts: the SDK is slow to load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import anyio.to_thread
from django.db import connections
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from observability.correlation import accept, correlated
from tools.doors import CallResult, call_tool
from tools.executor import ToolExecutor
from tools.models import ToolExecution
from tools.results import as_text, cut, estimated_tokens, page_of
from tools.settings import tool_settings
from tools.types import ToolSpec
from workspaces.models import Membership, User, Workspace
from workspaces.permissions import may

T = TypeVar("T")

NAME = "capstan"
INSTRUCTIONS = (
    "Tools over one workspace's data. A call that has to wait for a person answers status `waiting_approval`: nothing"
    " has happened yet then, and it runs once somebody has approved it."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is on the other end; the transport has authenticated him."""

    user: User
    workspace: Workspace


CallerOf = Callable[[ServerRequestContext[Any, Any]], Caller]
ExecutorOf = Callable[[Workspace], ToolExecutor]


def build_server(*, caller_of: CallerOf, executor_of: ExecutorOf, clock: Callable[[], datetime]) -> Server[Any]:
    """An MCP server that lists what its caller may call, and calls it.

    Args:
        caller_of: who made this request.
        executor_of: the executor for a workspace; it names identity and mode.
        clock: aware UTC time.
    """

    async def list_tools(ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        caller = caller_of(ctx)
        return ListToolsResult(tools=await in_thread(lambda: _offered(caller, executor_of(caller.workspace))))

    async def call(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        caller = caller_of(ctx)
        header = ctx.request.headers.get("x-correlation-id") if ctx.request is not None else None
        correlation_id = accept(header)

        def work() -> CallToolResult:
            with correlated(correlation_id):
                done = call_tool(
                    executor=executor_of(caller.workspace),
                    user=caller.user,
                    workspace=caller.workspace,
                    name=params.name,
                    arguments=params.arguments or {},
                    door="mcp",
                    correlation_id=correlation_id,
                    clock=clock,
                )
                return _answer(done)

        return await in_thread(work)

    return Server(NAME, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client on stdin and stdout until it hangs up."""
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def in_thread(work: Callable[[], T]) -> T:
    """Run what touches the database off the event loop; its connection goes back to the pool."""

    def wrapped() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    return await anyio.to_thread.run_sync(wrapped)


def _offered(caller: Caller, executor: ToolExecutor) -> list[Tool]:
    if not Membership.objects.filter(user=caller.user, workspace=caller.workspace, user__is_active=True).exists():
        return []
    return [
        _described(spec)
        for spec in executor.registry
        if spec.name in executor.exposed_names()
        and (spec.permission is None or may(caller.user, spec.permission, workspace=caller.workspace))
    ]


def _described(spec: ToolSpec) -> Tool:
    return Tool(
        name=spec.name,
        title=spec.label,
        description=spec.description,
        input_schema=dict(spec.input_schema),
        annotations=ToolAnnotations(
            title=spec.label,
            read_only_hint=spec.effect == "read",
            destructive_hint=spec.destructive,
            idempotent_hint=spec.idempotent,
            open_world_hint=spec.effect == "external",
        ),
    )


def _answer(done: CallResult) -> CallToolResult:
    if done.envelope is None:
        if done.approval is None:
            taken = {"status": done.call.status, "call_id": done.call.pk}
            return CallToolResult(
                content=[TextContent(text=f"The call goes on in another process. {as_text(taken)}")],
                structured_content=taken,
            )
        waits = {"status": "waiting_approval", "approval_id": done.approval.pk, "call_id": done.call.pk}
        return CallToolResult(
            content=[
                TextContent(text=f"Nothing has happened yet: a person has to approve this call. {as_text(waits)}")
            ],
            structured_content=waits,
        )
    if not done.envelope["success"]:
        return CallToolResult(content=[TextContent(text=done.envelope["error"] or "failed")], is_error=True)
    result = done.envelope["result"]
    structured = result if isinstance(result, dict) else {"result": result}
    page = page_of(result)
    tokens = tool_settings().result_tokens
    if estimated_tokens(page.text) <= tokens:
        return CallToolResult(content=[TextContent(text=page.text)], structured_content=structured)
    return CallToolResult(content=[TextContent(text=_shortened(done.execution, done.call.tool_name, result, tokens))])


def _shortened(row: ToolExecution | None, name: str, result: Any, tokens: int) -> str:
    handle = str(row.pk) if row is not None else ""
    return cut(name, page_of(result), handle=handle, tokens=tokens)
