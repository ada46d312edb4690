"""Executors over the tools of one workspace: the code's, and those of its MCP servers (CAP-120)."""

from __future__ import annotations

from factory.identities import identity as named_identity
from prompt.types import AgentIdentity, Mode
from tools.executor import ToolExecutor
from tools.registry import registry
from tools.toolset import tools_of
from workspaces.models import Workspace


def build_executor(identity: AgentIdentity | str, *, mode: Mode, workspace: Workspace) -> ToolExecutor:
    """The executor of an identity in a workspace, for doors that have no agent.

    Args:
        identity: who calls, or its name.
        mode: which tools are offered (CAP-039).

    Raises:
        UnknownIdentity: no agent has that name.
    """
    who = named_identity(identity) if isinstance(identity, str) else identity
    return ToolExecutor(tools_of(workspace), who, mode=mode)


def in_workspace(executor: ToolExecutor, workspace_id: int) -> ToolExecutor:
    """The same executor with the tools of the workspace's MCP servers, where it has such."""
    if executor.registry is not registry():
        return executor  # somebody chose its tools
    tools = tools_of(workspace_id)
    return executor if tools is executor.registry else ToolExecutor(tools, executor.identity, mode=executor.mode)
