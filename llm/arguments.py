"""A call's arguments, from what a wire carried to the object that a tool gets."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn
from uuid import uuid4

from llm.types import ToolCall

MAX_NAME = 128  # a tool has at most 64 characters; what is longer names none, and fits no column
KEPT_ID = 128  # characters of a call's id that a result's column keeps; the call itself has it whole
MAX_DEPTH = 64  # of objects and arrays inside each other


def tool_call(call_id: str, name: str, raw: object) -> ToolCall:
    """One normalised call; an id of ours where the provider sent none.

    Args:
        call_id: the provider's id, or empty.
        name: the tool's name, as written; cut behind `MAX_NAME` characters.
        raw: the arguments: JSON text, or an object already.
    """
    arguments, error = parse_arguments(raw)
    if problem := unstorable(arguments, depth=MAX_DEPTH):
        arguments, error = {}, f"The arguments {problem}."
    call = ToolCall(id=call_id or f"call_{uuid4().hex[:24]}", name=storable(name)[:MAX_NAME], arguments=arguments)
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
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if isinstance(value, str):
            value = json.loads(value, parse_constant=_no_constant, parse_float=_finite)
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


def unstorable(value: Any, *, depth: int) -> str:
    """Why a JSON value cannot be stored, as the end of a sentence; empty: it can.

    Args:
        depth: of objects and arrays inside each other, at most.
    """
    if isinstance(value, str):
        fine = storable(value) == value
        return "" if fine else "hold a character that no text may hold (NUL, or half a surrogate pair)"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "hold a number that JSON cannot hold"
    if not isinstance(value, dict | list):
        return ""
    if depth == 0:
        return "are nested too deeply"
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    for part in parts:
        if problem := unstorable(part, depth=depth - 1):
            return problem
    return ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is too large a number")
    return value
