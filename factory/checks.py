"""A model that is not configured stops every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import Error, register

from factory.tiers import model_problems


@register("llm")
def model_is_configured(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[Error]:
    """`factory.E001`, once for each variable: the environment names no usable model."""
    return [
        Error(f"{setting} {problem}", hint=f"{hint[0].upper()}{hint[1:]}.", id="factory.E001")
        for setting, problem, hint in model_problems()
    ]
