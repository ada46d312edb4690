"""A model that is not configured stops every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import Error, register

from factory.tiers import llm_settings
from workspaces.errors import ConfigurationError


@register("llm")
def model_is_configured(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[Error]:
    """`factory.E001`: the environment names no usable model."""
    try:
        llm_settings()
    except ConfigurationError as exc:
        setting, hint = exc.details.get("setting"), exc.details.get("hint")
        return [Error(f"{setting} does not fit", hint=f"{setting}: {hint}", id="factory.E001")]
    return []
