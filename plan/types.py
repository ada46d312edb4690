"""Frozen values of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_STEPS = 50  # of a plan that a model makes; a template may hold more
MAX_SYNTHESIS = 8_000  # characters
MAX_RESULT = 256 * 1024  # bytes of JSON
CONTEXT = "context"  # the key under which `$from` finds the plan's own context


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One step before it is a row (design § 5.4).

    Args:
        key: unique in its plan; what `reads` and `$from` name.
        action: what is to be done, in words.
        kind: `llm`, `data`, `planning` or `assessment`.
        recipe: the workflow template its prompt uses; empty: none.
        tool_name, args: for a data step the call; for the others a hint to their model.
        reads: keys of earlier steps whose results it needs; None: the step before; empty: none.
        is_critical: its failure fails the plan.
        tier: another tier than the kind's.
    """

    key: str
    action: str
    kind: str = "llm"
    recipe: str = ""
    tool_name: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] | None = None
    is_critical: bool = True
    tier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTemplate:
    """A known step graph that a domain app registers (CAP-050, SC-03).

    Args:
        id: unique.
        goal: what people read; `{name}` stands for a key of the context.
        steps: of any kind, in order.
        requires: keys the context must hold.
        validators: names registered in `prompt.validate`, given the context before anything is held (CAP-023).
        adaptable: whether people and planning steps may change its pending steps.
        adapt_permission: `app_label.codename` that changing needs besides ownership; empty: none.
    """

    id: str
    goal: str
    steps: tuple[StepSpec, ...]
    requires: frozenset[str] = frozenset()
    validators: tuple[str, ...] = ()
    adaptable: bool = False
    adapt_permission: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """One change of a plan's pending steps (CAP-055).

    Args:
        op: `insert`, `remove`, `update` or `reorder`.
        key: the step that is inserted, removed or updated.
        after: insert: the step it comes behind; None: at the front of what is pending.
        fields: insert and update: the step's columns by `StepSpec`'s names, `key` left out.
        keys: reorder: every pending step, in the new order.
    """

    op: str
    key: str = ""
    after: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
