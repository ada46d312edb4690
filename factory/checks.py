"""A model that is not configured stops every start, and so does a setting for an agent that there is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import Error, register

from factory.identities import identities
from factory.tiers import model_problems


@register("llm")
def model_is_configured(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[Error]:
    """`factory.E001`, once for each variable: the environment names no usable model."""
    return [
        Error(f"{setting} {problem}", hint=f"{hint[0].upper()}{hint[1:]}.", id="factory.E001")
        for setting, problem, hint in model_problems()
    ]


@register("agents")
def named_agents_exist(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[Error]:
    """`factory.E002`: limits or approvals are set for an agent that there is not."""
    known = identities()
    return [
        Error(
            f"{variable} names the agent {name!r}, which there is not",
            hint=f"The agents are {', '.join(sorted(known))}.",
            id="factory.E002",
        )
        for variable, setting in (("AGENT_LIMITS", "CAPSTAN_LIMITS"), ("TOOL_APPROVALS", "CAPSTAN_APPROVALS"))
        for name in getattr(settings, setting, {})
        if name not in known
    ]
