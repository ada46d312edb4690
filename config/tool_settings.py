"""`CAPSTAN_TOOLS` from the environment: caps, approvals, budgets, MCP servers; and the limits of agents."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from typing import Any, get_args

from config.environment import Environment
from prompt.types import ApprovalPolicy, Limits
from tools.settings import McpCommand
from workspaces.errors import ConfigurationError

MOST = 1_000_000_000
POLICIES = get_args(ApprovalPolicy)


def tools_from(env: Environment) -> dict[str, Any]:
    """The fields of `tools.settings.ToolSettings`.

    Raises:
        ConfigurationError: a value does not parse; it is named.
    """
    return {
        "result_tokens": env.integer("TOOL_RESULT_TOKENS", default=4_000, minimum=200, maximum=MOST),
        "batch_tokens": env.integer("TOOL_BATCH_TOKENS", default=12_000, minimum=200, maximum=MOST),
        "approval_days": env.number("APPROVAL_DAYS", default=7, minimum=0.01, maximum=365),
        "four_eyes": env.flag("APPROVAL_FOUR_EYES", default=False),
        "user_day_calls": _limit(env, "USER_DAY_TOOL_CALLS"),
        "user_day_tokens": _limit(env, "USER_DAY_TOKENS"),
        "user_day_cost_usd": _money(env, "USER_DAY_COST_USD"),
        "mcp_commands": {name: _command(name, value) for name, value in _object(env, "MCP_COMMANDS").items()},
        "mcp_tokens": {origin.rstrip("/"): str(token) for origin, token in _object(env, "MCP_TOKENS").items()},
        "mcp_private_networks": _networks(env, "MCP_PRIVATE_NETWORKS"),
    }


def approvals_from(env: Environment) -> dict[str, dict[str, str]]:
    """When a person is asked, by agent and tool; in place of what the tools themselves say.

    Raises:
        ConfigurationError: the value does not parse.
    """
    hint = f'write {{"planner": {{"tool_name": "call"}}}}; a policy is one of {", ".join(POLICIES)}.'
    approvals = _object(env, "TOOL_APPROVALS")
    for tools in approvals.values():
        if not isinstance(tools, dict) or not all(policy in POLICIES for policy in tools.values()):
            raise ConfigurationError(setting="TOOL_APPROVALS", hint=hint)
    return approvals


def limits_from(env: Environment) -> dict[str, dict[str, Any]]:
    """How far one turn or step of an agent may go, by agent and the names of `prompt.types.Limits` (CAP-043).

    Raises:
        ConfigurationError: the value does not parse, or a limit has no such name or makes no sense.
    """
    return {agent: _limits(agent, values) for agent, values in _object(env, "AGENT_LIMITS").items()}


def _limits(agent: str, values: Any) -> dict[str, Any]:
    known = {field.name: field.default for field in fields(Limits)}
    hint = f'write {{"planner": {{"iterations": 10, "cost_usd": 0.5}}}}; the limits are {", ".join(known)}.'
    if not isinstance(values, dict) or values.keys() - known.keys():
        raise ConfigurationError(setting="AGENT_LIMITS", hint=hint)
    limits: dict[str, Any] = {}
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST
        whole = isinstance(known[name], int) or name == "tokens"
        if not number or (whole and value != int(value)):
            kind = "whole number" if whole else "number"
            raise ConfigurationError(setting="AGENT_LIMITS", hint=f"{name} of {agent!r} takes a {kind} above 0.")
        limits[name] = Decimal(str(value)) if name == "cost_usd" else int(value) if whole else value
    return limits


def _limit(env: Environment, name: str) -> int | None:
    return env.integer(name, default=0, minimum=1, maximum=MOST) if env.text(name) else None


def _money(env: Environment, name: str) -> Decimal | None:
    text = env.text(name)
    if not text:
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value <= 0:
        raise ConfigurationError(setting=name, hint=f"{text!r} is no amount above 0, such as 2.50.")
    return value


def _object(env: Environment, name: str) -> dict[str, Any]:
    text = env.text(name)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ConfigurationError(setting=name, hint="it is no JSON object.") from exc
    if not isinstance(value, dict):
        raise ConfigurationError(setting=name, hint="it is no JSON object.")
    return value


def _command(name: str, value: Any) -> McpCommand:
    hint = f'{name!r} is written as {{"argv": ["program", "argument"], "environment": ["NAME"]}}.'
    if not isinstance(value, dict) or value.keys() - {"argv", "environment"}:
        raise ConfigurationError(setting="MCP_COMMANDS", hint=hint)
    argv, environment = value.get("argv"), value.get("environment", [])
    lists = (argv, environment)
    if not argv or not all(isinstance(part, list) and all(isinstance(word, str) for word in part) for part in lists):
        raise ConfigurationError(setting="MCP_COMMANDS", hint=hint)
    return McpCommand(argv=tuple(argv), environment=tuple(environment))


def _networks(env: Environment, name: str) -> tuple[str, ...]:
    for network in env.words(name):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as exc:
            raise ConfigurationError(setting=name, hint=f"{network!r} is no network such as 10.0.0.0/8.") from exc
    return tuple(env.words(name))
