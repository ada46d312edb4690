"""The tools of one workspace: the code's, and those of its MCP servers."""

from __future__ import annotations

from tools.registry import Registry, registry
from workspaces.models import Workspace


def tools_of(workspace: Workspace) -> Registry:
    """All tools that calls in `workspace` may name."""
    return registry()
