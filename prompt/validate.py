"""Validate before the model is called: what is structurally wrong costs no tokens (CAP-023)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from prompt.errors import InputInvalid, RecipeInvalid
from prompt.models import WorkflowTemplate
from prompt.types import AgentIdentity

Validator = Callable[[Mapping[str, Any]], Iterable[str]]

validators: dict[str, Validator] = {}


def validator(name: str) -> Callable[[Validator], Validator]:
    """Register a check that recipes and pipelines may name; it gives the problems it finds, none when all is well.

    Raises:
        ValueError: another check has that name.
    """

    def register(check: Validator) -> Validator:
        known = validators.get(name)
        if known is not None and known.__qualname__ != check.__qualname__:
            raise ValueError(f"two validators are named {name!r}")
        validators[name] = check
        return check

    return register


def validate(names: Iterable[str], data: Mapping[str, Any]) -> None:
    """Run the named checks over `data` and report everything they find at once.

    Raises:
        InputInvalid: something is wrong, or a check is not registered.

    Source: CAP-023.
    """
    problems: list[str] = []
    for name in names:
        check = validators.get(name)
        problems.extend([f"validator {name!r} is not registered"] if check is None else check(data))
    if problems:
        raise InputInvalid(problems=problems)


def check_recipe(recipe: WorkflowTemplate, identity: AgentIdentity) -> None:
    """Refuse a recipe that names a tool the agent does not have.

    Raises:
        RecipeInvalid: before any model call.

    Source: CAP-022, CAP-023.
    """
    missing = sorted(
        name
        for name in set(recipe.required_tools)
        if not any(fnmatchcase(name, allowed) for allowed in identity.allowed_tools)
    )
    if missing:
        raise RecipeInvalid(recipe=recipe.name, version=recipe.version, identity=identity.name, missing=missing)


@validator("non_blank_text")
def _non_blank_text(data: Mapping[str, Any]) -> list[str]:
    return [] if str(data.get("text", "")).strip() else ["text: is blank"]
