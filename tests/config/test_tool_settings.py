"""Caps, budgets and MCP servers from the environment; a bad value is named."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.core.checks import run_checks

from config.environment import Environment
from config.tool_settings import approvals_from, limits_from, tools_from
from factory.identities import identity
from prompt.types import Limits
from tools.settings import McpCommand, ToolSettings
from workspaces.errors import ConfigurationError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert ToolSettings(**tools_from(Environment({}))) == ToolSettings()


def test_every_value_arrives() -> None:
    values = tools_from(
        Environment(
            {
                "APPROVAL_FOUR_EYES": "true",
                "APPROVAL_DAYS": "1.5",
                "USER_DAY_TOOL_CALLS": "100",
                "USER_DAY_COST_USD": "2.50",
                "MCP_COMMANDS": '{"files": {"argv": ["server", "/data"], "environment": ["LANG"]}}',
                "MCP_TOKENS": '{"https://tools.example.com/": "s3cret"}',
                "MCP_PRIVATE_NETWORKS": "10.1.0.0/16, fd00::/8",
            }
        )
    )
    settings = ToolSettings(**values)
    assert (settings.four_eyes, settings.approval_days, settings.user_day_calls) == (True, 1.5, 100)
    assert settings.user_day_cost_usd == Decimal("2.50")
    assert settings.mcp_commands == {"files": McpCommand(argv=("server", "/data"), environment=("LANG",))}
    assert settings.mcp_tokens == {"https://tools.example.com": "s3cret"}
    assert settings.mcp_private_networks == ("10.1.0.0/16", "fd00::/8")
    assert "s3cret" not in repr(settings)


def test_approvals_are_named_by_agent_and_tool() -> None:
    assert approvals_from(Environment({})) == {}
    given = Environment({"TOOL_APPROVALS": '{"planner": {"annotate_element": "turn"}}'})
    assert approvals_from(given) == {"planner": {"annotate_element": "turn"}}
    for value in ('{"planner": "call"}', '{"planner": {"a": "sometimes"}}'):
        with pytest.raises(ConfigurationError, match="TOOL_APPROVALS"):
            approvals_from(Environment({"TOOL_APPROVALS": value}))


def test_limits_are_named_by_agent(settings: Any) -> None:
    assert limits_from(Environment({})) == {}
    given = Environment({"AGENT_LIMITS": '{"planner": {"iterations": 15, "turn_seconds": 2.5, "cost_usd": 0.5}}'})
    assert limits_from(given) == {"planner": {"iterations": 15, "turn_seconds": 2.5, "cost_usd": Decimal("0.5")}}
    settings.CAPSTAN_LIMITS = limits_from(given)
    assert identity("planner").limits == Limits(iterations=15, turn_seconds=2.5, cost_usd=Decimal("0.5"))
    assert identity("field").limits == Limits()


def test_a_whole_number_is_one_however_it_is_written() -> None:
    given = Environment({"AGENT_LIMITS": '{"planner": {"iterations": 2.0, "tokens": 8e3, "turn_seconds": 2.0}}'})
    limits = limits_from(given)["planner"]
    assert {name: repr(value) for name, value in limits.items()} == {
        "iterations": "2",
        "tokens": "8000",
        "turn_seconds": "2.0",
    }


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        '{"planner": 3}',
        '{"planner": {"rounds": 3}}',
        '{"planner": {"iterations": 0}}',
        '{"planner": {"iterations": true}}',
        '{"planner": {"tokens": 1.5}}',
        '{"planner": {"cost_usd": "free"}}',
    ],
)
def test_a_limit_that_makes_no_sense_is_named(value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        limits_from(Environment({"AGENT_LIMITS": value}))
    assert caught.value.details["setting"] == "AGENT_LIMITS"


def test_a_setting_for_an_agent_that_there_is_not_stops_the_start(settings: Any) -> None:
    settings.CAPSTAN_LIMITS = {"plannr": {"iterations": 3}, "planner": {"iterations": 3}}
    [problem] = run_checks(tags=["agents"])
    assert (problem.id, "AGENT_LIMITS" in problem.msg, "planner" in (problem.hint or "")) == (
        "factory.E002",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("APPROVAL_DAYS", "soon"),
        ("USER_DAY_TOKENS", "0"),
        ("USER_DAY_COST_USD", "free"),
        ("USER_DAY_COST_USD", "-1"),
        ("MCP_COMMANDS", "[]"),
        ("MCP_COMMANDS", '{"a": "rm -rf"}'),
        ("MCP_COMMANDS", '{"a": {"argv": []}}'),
        ("MCP_TOKENS", "{"),
        ("MCP_PRIVATE_NETWORKS", "10.0.0.0/99"),
    ],
)
def test_a_value_that_does_not_parse_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tools_from(Environment({name: value}))
    assert caught.value.details["setting"] == name
