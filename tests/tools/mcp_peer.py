"""Another MCP server: a program for the stdio transport, an app for the other one."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("peer")


@server.tool(description="Add two numbers.")
def add(a: int, b: int) -> int:
    return a + b


@server.tool(description="What the server was told about who calls.")
def whoami(user_id: int, note: str = "") -> str:
    return f"{user_id} {note}"


@server.tool(description="The names of the variables this process has.")
def environment() -> list[str]:
    return sorted(os.environ)


@server.tool(description="A long text.")
def long(size: int) -> str:
    return "x" * size


@server.tool(description="Fails.")
def broken() -> str:
    raise ValueError("it broke")


@server.tool(description="Takes effect at once, and answers much later.")
async def slow(path: str) -> str:
    with Path(path).open("a", encoding="utf-8") as world:  # a line
        world.write("happened\n")
    await anyio.sleep(120)
    return "late"


if __name__ == "__main__":
    server.run("stdio")
