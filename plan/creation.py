"""Checks a plan before it is held: everything that is wrong with it, told at once (CAP-050)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm.arguments import MAX_DEPTH, storable
from plan.errors import PlanInvalid, ReferenceMissing
from plan.models import StepKind
from plan.types import CONTEXT, MAX_RESULT, StepSpec

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,63}")
_TEXT = 4_000  # characters of a goal or an action
_PATH = 200  # characters of a path in a problem


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
    problems += [f"goal: {problem}" for _, problem in unholdable(goal)]
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
    for field in ("action", "recipe", "tool_name"):
        yield from (f"{field}: {problem}" for _, problem in unholdable(getattr(step, field)))
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
    args = dict(step.args)
    if faults := list(unholdable(args)):
        yield from (f"args: {at!r} {problem}" for at, problem in faults)
        return
    for reference in references(args):
        source = reference.partition(".")[0]
        if source == CONTEXT:
            if not _found(context, reference):
                yield f"args: the plan's context holds no {reference!r}"
        elif source not in reads:
            yield f"args: {reference!r} names no step that this step reads"


def unholdable(value: Any, at: str = "", *, depth: int = MAX_DEPTH) -> Iterator[tuple[str, str]]:
    """What keeps a value from being plain JSON that PostgreSQL holds: where, as a `key.path`, and why.

    Args:
        depth: of objects and lists inside each other, at most.
    """
    if isinstance(value, str):
        if storable(value) != value:
            yield at, "holds a character that no text may hold (NUL, or half a surrogate pair)"
    elif isinstance(value, int):
        try:
            str(value)
        except ValueError:
            yield at, "holds a number with too many digits"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield at, "holds a number that JSON cannot hold"
    elif isinstance(value, dict | list | tuple):
        if depth == 0:
            yield at, f"is nested too deeply: at most {MAX_DEPTH} levels"
            return
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            below = f"{at}.{key}".lstrip(".")[:_PATH]
            if isinstance(value, dict) and not isinstance(key, str):
                yield below, f"has a key of type {type(key).__name__}; a key is a text"
            elif isinstance(key, str) and storable(key) != key:
                yield below, "is a key with a character that no text may hold (NUL, or half a surrogate pair)"
            else:
                yield from unholdable(part, below, depth=depth - 1)
    elif value is not None:
        yield at, f"is of type {type(value).__name__}, which JSON cannot hold"


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
        ReferenceMissing: it was in a result that was too large to keep.
    """
    value: Any = sources
    source = reference.partition(".")[0]
    for part in reference.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif source != CONTEXT and (size := _not_kept(sources.get(source))):
            reason = f"the result of {source!r} was {size:,} bytes; over {MAX_RESULT:,} it is not kept: return less"
            raise ReferenceMissing(reference=reference, reason=reason)
        else:
            raise KeyError(reference)
    return value


def _not_kept(result: Any) -> int:
    """The bytes of a result in whose place a note stands; 0: it is the result itself."""
    if not isinstance(result, Mapping) or set(result) != {"truncated", "bytes"} or result["truncated"] is not True:
        return 0
    size = result["bytes"]
    return size if isinstance(size, int) and size > MAX_RESULT else 0


def filled_in(value: Any, sources: Mapping[str, Any]) -> Any:
    """`value` with each `{"$from": …}` replaced by what it names.

    Raises:
        KeyError: a reference names nothing.
        ReferenceMissing: it names a part of a result that was too large to keep.
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
