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
    if not is_storable(arguments):
        arguments, error = {}, "The arguments hold a character that no text may hold (NUL, or half a surrogate pair)."
    call = ToolCall(id=call_id or f"call_{uuid4().hex[:24]}", name=storable(name), arguments=arguments)
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


def storable(text: str) -> str:
    """The text without what UTF-8 or PostgreSQL cannot hold: no NUL, halves of surrogate pairs joined or replaced."""
    if text.isascii() and "\0" not in text:
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\ufffd")


def is_storable(value: Any) -> bool:
    """Whether every text in a JSON value can be stored."""
    if isinstance(value, str):
        return storable(value) == value
    if isinstance(value, dict):
        return all(is_storable(name) and is_storable(item) for name, item in value.items())
    return all(map(is_storable, value)) if isinstance(value, list) else True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
