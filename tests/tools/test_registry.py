"""Which functions become tools, and which stop the start (CAP-030)."""

from __future__ import annotations

from typing import Any

import pytest

from tools.errors import RegistryFrozen, ToolRegistrationError
from tools.registry import Registry, registry, tool


def declared(**options: Any) -> Registry:
    local = Registry()

    @tool(registry=local, **options)
    def act(x: int) -> int:
        """Act."""
        return x

    return local


def test_cap_030_a_tool_is_its_function_with_its_declaration() -> None:
    local = declared(effect="write", permission="app.act", timeout_s=5)
    spec = local.get("act")
    assert spec is not None
    assert (spec.effect, spec.permission, spec.timeout_s, spec.description) == ("write", "app.act", 5, "Act.")
    assert spec.fn(3) == 3
    assert local.names() == {"act"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"effect": "write"}, "needs a permission"),
        ({"effect": "external"}, "needs a permission"),
        ({"effect": "write", "permission": "act"}, "is no permission"),
        ({"effect": "weird"}, "no effect 'weird'"),
        ({"effect": "read", "timeout_s": 0}, "timeout_s"),
        ({"effect": "read", "handoff": True}, "a handoff is a write"),
        ({"effect": "read", "probe": print}, "only an external tool has a probe"),
        ({"effect": "write", "permission": "a.b", "destructive": True, "approval": "never"}, "at every call"),
        ({"effect": "read", "destructive": True}, "a destructive tool writes"),
        ({"effect": "read", "approval": "sometimes"}, "no approval policy 'sometimes'"),
    ],
)
def test_a_declaration_that_cannot_hold_stops_the_start(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ToolRegistrationError) as caught:
        declared(**options).freeze()
    assert reason in str(caught.value)
    assert "test_registry" in str(caught.value)


def test_two_tools_of_one_name_stop_the_start_naming_both() -> None:
    local = Registry()

    def first() -> Any:
        @tool(effect="read", registry=local)
        def twin() -> str:
            return ""

        return twin

    def second() -> Any:
        @tool(effect="read", registry=local)
        def twin() -> str:
            return ""

        return twin

    first(), second()
    with pytest.raises(ToolRegistrationError) as caught:
        local.freeze()
    assert "first.<locals>.twin" in str(caught.value)
    assert "second.<locals>.twin" in str(caught.value)


def test_a_frozen_registry_takes_no_more() -> None:
    local = declared(effect="read")
    local.freeze()
    with pytest.raises(RegistryFrozen):

        @tool(effect="read", registry=local)
        def late() -> str:
            return ""


def test_the_code_registry_is_frozen_once_apps_are_ready() -> None:
    assert registry().frozen
    with pytest.raises(RegistryFrozen):

        @tool(effect="read")
        def late() -> str:
            return ""


def test_a_registry_is_made_from_declared_functions_only() -> None:
    spec = declared(effect="read").get("act")
    assert spec is not None
    assert Registry([spec.fn]).names() == {"act"}
    with pytest.raises(ToolRegistrationError, match="missing"):
        Registry([lambda: ""])


def test_a_layer_adds_tools_and_leaves_the_registry_as_it_is() -> None:
    base = declared(effect="read")
    spec = base.get("act")
    assert spec is not None
    with pytest.raises(ToolRegistrationError, match="taken"):
        base.layered([spec])
    assert Registry().layered([spec]).names() == {"act"}
