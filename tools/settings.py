"""What `tools` asks of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class McpCommand:
    """A stdio server that rows may name: only settings say what is started.

    Args:
        argv: program and arguments.
        environment: names of our variables that the child gets besides PATH; never a key of ours.
    """

    argv: tuple[str, ...]
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """Setting `CAPSTAN_TOOLS`, by these names.

    Args:
        result_tokens: how much of one result the model reads at once, tokens (estimated).
        batch_tokens: how much of all results of one round, tokens.
        approval_days: how long an approval waits for a person.
        four_eyes: the requester may not decide the own approvals.
        user_day_calls: tool calls one user may make a day (UTC), all runs together; None: no limit.
        user_day_tokens, user_day_cost_usd: what one user's model calls may use a day (UTC); None: no limit.
        mcp_commands: stdio servers by the name that rows use.
        mcp_tokens: bearer tokens for MCP servers by origin, such as `https://tools.example.com`.
        mcp_private_networks: networks (CIDR) in private ranges that MCP servers may be reached in.
    """

    result_tokens: int = 4_000
    batch_tokens: int = 12_000
    approval_days: float = 7.0
    four_eyes: bool = False
    user_day_calls: int | None = None
    user_day_tokens: int | None = None
    user_day_cost_usd: Decimal | None = None
    mcp_commands: Mapping[str, McpCommand] = field(default_factory=dict)
    mcp_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    mcp_private_networks: tuple[str, ...] = ()


def tool_settings() -> ToolSettings:
    return ToolSettings(**getattr(settings, "CAPSTAN_TOOLS", {}))
