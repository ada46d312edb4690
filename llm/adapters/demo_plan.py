"""The plan that the stand-in makes of a message: three steps, in the message's words."""

from __future__ import annotations

import re
from typing import Any

from llm.adapters import demo_tools as tools
from llm.adapters.demo_reading import Reading
from llm.adapters.demo_words import STEP_ACTIONS
from llm.types import ToolSchema


def plan(planner: ToolSchema, reading: Reading) -> dict[str, Any] | None:
    """Arguments for `create_plan` as far as its schema knows their fields; None when it takes no such plan."""
    subject = _subject(reading) or reading.task[:60].rstrip(".!? ") or "the workspace"
    named = f"`{subject}`" if reading.terms else subject
    actions = STEP_ACTIONS[1 if reading.german else 0]
    filled = [action.format(what) for action, what in zip(actions, (named, named, reading.task[:200]), strict=True)]
    reads: tuple[list[str], ...] = ([], ["survey"], ["survey", "examine"])
    steps = [
        {"key": key, "action": action, "is_critical": key != "examine", "reads": read}
        for key, action, read in zip(("survey", "examine", "propose"), filled, reads, strict=True)
    ]
    schema = planner["input_schema"]
    known = _step_fields(schema)
    arguments = {
        "goal": reading.task[:300] or subject,
        "steps": [{name: value for name, value in step.items() if not known or name in known} for step in steps],
    }
    return arguments if tools.valid(schema, arguments) else None


def _subject(reading: Reading) -> str:
    terms = reading.terms
    if terms and (terms[0] in reading.quoted or re.search(r"[._:/]|[a-z][A-Z]", terms[0])):
        return terms[0]
    return " ".join(terms[:2])


def _step_fields(schema: dict[str, Any]) -> set[str]:
    items = schema.get("properties", {}).get("steps", {}).get("items", {})
    if "$ref" in items:
        items = schema.get("$defs", {}).get(str(items["$ref"]).rpartition("/")[2], {})
    return set(items.get("properties", ()))
