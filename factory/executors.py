"""Executors for doors that have no agent: the tools of one workspace, for one identity (CAP-120)."""

from __future__ import annotations

from dataclasses import replace

from factory.identities import identity as named_identity
from prompt.types import AgentIdentity, Mode
from tools.executor import ToolExecutor
from tools.registry import registry
from tools.toolset import tools_of
from workspaces.models import Workspace


def build_executor(identity: AgentIdentity | str, *, mode: Mode, workspace: Workspace) -> ToolExecutor:
    """The executor of an identity in a workspace, its MCP servers' approved tools among what it may call.

    Args:
        identity: who calls, or its name.
        mode: which tools are offered (CAP-039).

    Raises:
        UnknownIdentity: no agent has that name.
    """
    who = named_identity(identity) if isinstance(identity, str) else identity
    tools = tools_of(workspace)
    if tools is not registry():
        who = replace(who, allowed_tools=who.allowed_tools | (tools.names() - registry().names()))
    return ToolExecutor(tools, who, mode=mode)
