"""Asking MCP servers for their tools and calling them, with the official SDK. Synchronous; call it in a thread.

Imported only where a server is asked: the SDK is slow to load.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tools.egress import check_url, checked_addresses
from tools.errors import EgressRefused, RemoteToolChanged, RemoteToolError
from tools.mcp_models import McpServer
from tools.results import as_text
from tools.settings import tool_settings
from tools.values import digest, storable

T = TypeVar("T")

PAGES = 50  # of a server's list of tools


def offered_tools(server: McpServer) -> list[dict[str, Any]]:
    """What the server offers now: name, description and input schema of each tool.

    Raises:
        RemoteToolError, EgressRefused: it cannot be asked.
    """
    return _run(server, _list)


def call_remote(server: McpServer, *, name: str, approved_digest: str, arguments: Mapping[str, Any], key: str) -> Any:
    """Call a tool when the server still offers what was approved.

    Args:
        approved_digest: of the offer that a person approved.
        key: the call's idempotency key, sent as metadata.

    Returns:
        Its structured content, else its text; cut to the server's `result_characters`.

    Raises:
        RemoteToolChanged: the offer is another one by now.
        RemoteToolError, EgressRefused: it cannot be asked, or says that the call failed.
    """

    async def body(client: Client) -> CallToolResult:
        offers = {offer["name"]: digest(offer) for offer in await _list(client)}
        if offers.get(name) != approved_digest:
            raise RemoteToolChanged(server=server.name, tool=name)
        return await client.call_tool(name, dict(arguments), meta=cast("Any", {"capstan/idempotency-key": key}))

    result = _run(server, body)
    text = "\n".join(
        block.text if isinstance(block, TextContent) else f"[{block.type} left out]" for block in result.content
    )
    if result.is_error:
        raise RemoteToolError(server=server.name, tool=name, answer=text[:400])
    value = storable(result.structured_content) if result.structured_content is not None else text
    size = len(value) if isinstance(value, str) else len(as_text(value))
    if size <= server.result_characters:
        return value
    kept = (value if isinstance(value, str) else as_text(value))[: server.result_characters]
    return f"{kept}\n[cut: {size} characters in all, {server.result_characters} are kept]"


async def _list(client: Client) -> list[dict[str, Any]]:
    offers: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await client.list_tools(cursor=cursor)
        offers += [
            storable({"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema})
            for tool in page.tools
        ]
        cursor = page.next_cursor
        if not cursor:
            return offers
    raise RemoteToolError(reason=f"the list of tools has more than {PAGES} pages")


def _run(server: McpServer, body: Callable[[Client], Awaitable[T]]) -> T:
    async def main() -> T:
        with anyio.fail_after(server.timeout_s):
            async with _connected(server) as client:
                return await body(client)

    try:
        return anyio.run(main)
    except (EgressRefused, RemoteToolChanged, RemoteToolError, TimeoutError):
        raise
    except BaseExceptionGroup as group:
        raise _reason(server, group) from group
    except (MCPError, httpx2.HTTPError, OSError, ValueError, RuntimeError) as exc:
        raise RemoteToolError(server=server.name, reason=f"{type(exc).__name__}: {exc}"[:300]) from exc


def _reason(server: McpServer, group: BaseExceptionGroup[BaseException]) -> Exception:
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    if isinstance(inner, (EgressRefused, RemoteToolChanged, RemoteToolError, TimeoutError)):
        return inner
    return RemoteToolError(server=server.name, reason=f"{type(inner).__name__}: {inner}"[:300])


@asynccontextmanager
async def _connected(server: McpServer) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if server.transport == McpServer.Transport.STDIO:
            sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # the stack closes it
            transport = stdio_client(_command(server.command), errlog=sink)
        else:
            settings = tool_settings()
            await anyio.to_thread.run_sync(
                lambda: check_url(server.url, private_networks=settings.mcp_private_networks)
            )
            http = await stack.enter_async_context(
                httpx2.AsyncClient(
                    transport=_CheckedTransport(trust_env=False),
                    headers=_headers(server.url),
                    timeout=server.timeout_s,
                    trust_env=False,
                )
            )
            transport = streamable_http_client(server.url, http_client=http)
        yield await stack.enter_async_context(Client(transport, read_timeout_seconds=server.timeout_s, cache=None))


def _command(name: str) -> StdioServerParameters:
    command = tool_settings().mcp_commands.get(name)
    if command is None:
        raise RemoteToolError(command=name, reason="MCP_COMMANDS lists no such command")
    environment = {name: os.environ[name] for name in command.environment if name in os.environ}
    return StdioServerParameters(command=command.argv[0], args=list(command.argv[1:]), env=environment)


def _headers(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    token = tool_settings().mcp_tokens.get(f"{parts.scheme}://{parts.netloc}")
    return {"Authorization": f"Bearer {token}"} if token else {}


class _CheckedTransport(httpx2.AsyncHTTPTransport):
    """Connects to the address that was checked, so that a name cannot change its address in between."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
        networks = tool_settings().mcp_private_networks
        addresses = await anyio.to_thread.run_sync(lambda: checked_addresses(host, port, private_networks=networks))
        request.extensions = {**request.extensions, "sni_hostname": host}
        request.url = request.url.copy_with(host=addresses[0])
        return await super().handle_async_request(request)
