"""Checks a plan before it is held: everything that is wrong with it, told at once (CAP-050)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plan.errors import PlanInvalid
from plan.models import StepKind
from plan.types import CONTEXT, StepSpec

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,63}")
_TEXT = 4_000  # characters of a goal or an action


def resolved(
    *,
    goal: str,
    steps: Sequence[StepSpec],
    known_tools: Collection[str] | None,
    context: Mapping[str, Any],
    max_steps: int,
) -> list[StepSpec]:
    """The steps with their `reads` filled in: absent means the step before, empty means none.

    Args:
        known_tools: names that steps may use; None: not checked.
        context: what `{"$from": "context.…"}` may refer to.

    Raises:
        PlanInvalid: its `problems` name every fault, each with the step's key.
    """
    problems: list[str] = []
    if not goal.strip():
        problems.append("goal: say what the plan is for")
    if len(goal) > _TEXT:
        problems.append(f"goal: at most {_TEXT} characters")
    if not steps:
        problems.append("steps: a plan has at least one step")
    if len(steps) > max_steps:
        problems.append(f"steps: at most {max_steps} steps, not {len(steps)}")
    filled: list[StepSpec] = []
    earlier: list[str] = []
    for number, step in enumerate(steps, start=1):
        name = step.key or f"step {number}"
        problems += [f"{name}: {problem}" for problem in _problems(step, earlier, known_tools, context)]
        reads = step.reads if step.reads is not None else tuple(earlier[-1:])
        filled.append(replace(step, reads=tuple(dict.fromkeys(reads))))
        earlier.append(step.key)
    if problems:
        raise PlanInvalid(problems=problems)
    return filled


def _problems(
    step: StepSpec, earlier: Sequence[str], known_tools: Collection[str] | None, context: Mapping[str, Any]
) -> Iterator[str]:
    if not _KEY.fullmatch(step.key):
        yield "key: 1 to 64 letters, digits, `_` or `-`"
    elif step.key == CONTEXT:
        yield f"key: {CONTEXT!r} is the plan's own context; take another"
    elif step.key in earlier:
        yield "key: used by an earlier step"
    if not step.action.strip():
        yield "action: say what is to be done"
    if len(step.action) > _TEXT:
        yield f"action: at most {_TEXT} characters"
    if step.kind not in StepKind.values:
        yield f"kind: one of {', '.join(StepKind.values)}"
    if step.kind == StepKind.DATA and not step.tool_name:
        yield "tool_name: a data step names its tool"
    if step.tool_name and known_tools is not None and step.tool_name not in known_tools:
        yield f"tool_name: no tool {step.tool_name!r} may be used here"
    reads = step.reads if step.reads is not None else tuple(earlier[-1:])
    for read in reads:
        if read not in earlier:
            yield f"reads: {read!r} is no earlier step"
    for reference in references(step.args):
        source = reference.partition(".")[0]
        if source == CONTEXT:
            if not _found(context, reference):
                yield f"args: the plan's context holds no {reference!r}"
        elif source not in reads:
            yield f"args: {reference!r} names no step that this step reads"
    try:
        json.dumps(step.args, allow_nan=False)
    except (TypeError, ValueError):
        yield "args: must be plain JSON"


def references(value: Any) -> Iterator[str]:
    """Every `{"$from": "key.path"}` in the arguments of a data step."""
    if isinstance(value, Mapping):
        if set(value) == {"$from"}:
            yield str(value["$from"])
            return
        for part in value.values():
            yield from references(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from references(part)


def look_up(sources: Mapping[str, Any], reference: str) -> Any:
    """The value that a `key.path` names.

    Raises:
        KeyError: there is no such value.
    """
    value: Any = sources
    for part in reference.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(reference)
    return value


def filled_in(value: Any, sources: Mapping[str, Any]) -> Any:
    """`value` with each `{"$from": …}` replaced by what it names.

    Raises:
        KeyError: a reference names nothing.
    """
    if isinstance(value, Mapping):
        if set(value) == {"$from"}:
            return look_up(sources, str(value["$from"]))
        return {key: filled_in(part, sources) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled_in(part, sources) for part in value]
    return value


def _found(context: Mapping[str, Any], reference: str) -> bool:
    try:
        look_up({CONTEXT: context}, reference)
    except KeyError:
        return False
    return True
