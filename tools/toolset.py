"""The tools of one workspace: the code's, and those of its MCP servers."""

from __future__ import annotations

import threading

from tools.mcp_models import McpServer
from tools.mcp_tools import layer_of
from tools.registry import Registry, registry
from workspaces.models import Workspace

_layers: dict[int, tuple[tuple[tuple[int, int], ...], Registry]] = {}
_lock = threading.Lock()


def tools_of(workspace: Workspace | int) -> Registry:
    """All tools that calls in `workspace` may name. One query; the layer is built again when a version has changed."""
    servers = list(McpServer.objects.for_workspace(workspace).filter(enabled=True).order_by("pk"))
    if not servers:
        return registry()
    versions = tuple((server.pk, server.version) for server in servers)
    key = workspace.pk if isinstance(workspace, Workspace) else workspace
    with _lock:
        known = _layers.get(key)
    if known is not None and known[0] == versions:
        return known[1]
    specs = layer_of(servers)
    layered = registry().layered(specs) if specs else registry()
    with _lock:
        _layers[key] = (versions, layered)
    return layered
