"""A call's arguments, from what a wire carried to the object that a tool gets."""

from __future__ import annotations

import json
from typing import Any, NoReturn
from uuid import uuid4

from llm.types import ToolCall


def tool_call(call_id: str, name: str, raw: object) -> ToolCall:
    """One normalised call; an id of ours where the provider sent none.

    Args:
        call_id: the provider's id, or empty.
        name: the tool's name, as written.
        raw: the arguments: JSON text, or an object already.
    """
    arguments, error = parse_arguments(raw)
    call = ToolCall(id=call_id or f"call_{uuid4().hex[:24]}", name=name, arguments=arguments)
    if error:
        call["arguments_error"] = error
    return call


def parse_arguments(raw: object) -> tuple[dict[str, Any], str]:
    """The arguments as an object, and why they are none (empty: they are).

    Nothing at all is an empty object; an object that was encoded twice is decoded twice; nothing else is guessed.
    """
    if raw is None:
        return {}, ""
    if isinstance(raw, dict):
        return raw, ""
    if not isinstance(raw, str):
        return {}, f"The arguments must be a JSON object, not {type(raw).__name__}."
    text = raw.strip()
    if not text:
        return {}, ""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if isinstance(value, str):
            value = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        return {}, f"The arguments are not valid JSON ({reason}). Send one JSON object."
    if value is None:
        return {}, ""
    if not isinstance(value, dict):
        return {}, f"The arguments must be a JSON object, not {type(value).__name__}."
    return value, ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
