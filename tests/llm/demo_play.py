"""Conversations with the stand-in, played to their end as the loop plays them."""

from __future__ import annotations

import json

import jsonschema

from llm.adapters import build
from llm.settings import LLMSettings
from llm.types import LLMMessage, ModelRequest, SystemBlock, ToolSchema

LLM = build(LLMSettings.from_env({"LLM_PROVIDER": "demo", "LLM_DEMO_DELAY_MS": "0"}, True), "demo")
STEP = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "action": {"type": "string"},
        "is_critical": {"type": "boolean"},
        "reads": {"type": "array", "items": {"type": "string"}},
        "tool_name": {"type": "string"},
    },
    "required": ["key", "action"],
    "additionalProperties": False,
}


def schema(name, description, required=(), **properties):
    return ToolSchema(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        },
    )


TEXT = {"type": "string"}
KIND = {"anyOf": [{"enum": ["package", "module", "class"], "type": "string"}, {"type": "null"}], "default": None}
LIMIT = {"type": "integer", "minimum": 1, "maximum": 50, "default": 20}
SEARCH = schema("search_elements", "Find elements.", ["query"], query=TEXT, kind=KIND, limit=LIMIT)
OVERVIEW = schema("catalog_overview", "How many elements of each kind there are, and the leading packages.")
GET = schema("get_element", "Everything about one element.", ["key"], key=TEXT)
DEPS = schema(
    "list_dependencies",
    "What an element depends on.",
    ["key"],
    key=TEXT,
    direction={"enum": ["outgoing", "incoming"], "type": "string", "default": "outgoing"},
)
NOTE = schema("annotate_element", "Write a note on an element.", ["key", "note"], key=TEXT, note=TEXT)
CHANGE = schema(
    "propose_changeset",
    "Propose changes.",
    ["title", "reason"],
    title=TEXT,
    reason=TEXT,
    rename={"type": "object", "additionalProperties": {"type": "string"}},
    remove={"type": "array", "items": TEXT},
)
PLAN = schema("create_plan", "Hand work over.", ["goal", "steps"], goal=TEXT, steps={"type": "array", "items": STEP})
CHAT = (NOTE, OVERVIEW, DEPS, PLAN, CHANGE, SEARCH)
WORKFLOW = (NOTE, OVERVIEW, GET, DEPS, CHANGE, SEARCH)
SNAPSHOT = {
    "catalog": {
        "repositories": [{"repository": "shop", "elements": 40, "by_kind": {"package": 4, "module": 20, "class": 16}}],
        "packages": [
            {"key": "package:shop.auth", "repository": "shop", "modules": 6, "used_by": 9, "summary": "Sign-in."},
            {"key": "package:shop.orders", "repository": "shop", "modules": 8, "used_by": 2, "summary": ""},
        ],
    }
}
RESULTS = {
    "search_elements": {"elements": [{"key": "module:shop.auth.tokens", "kind": "module"}], "more": False},
    "catalog_overview": {"repositories": {"shop": {"package": 4}}, "packages": SNAPSHOT["catalog"]["packages"]},
    "get_element": {"key": "module:shop.auth.tokens", "kind": "module", "contains": [], "used_by": 3},
    "list_dependencies": {"key": "module:shop.auth.tokens", "dependencies": [{"key": "module:shop.db", "times": 2}]},
    "annotate_element": {"note": 1, "key": "package:shop.auth"},
    "propose_changeset": {"change_set": 1, "status": "proposed"},
    "create_plan": {"plan_id": 7, "steps": 3},
}  # fmt: skip
GOAL = (SystemBlock("You work on one step of a plan. The plan's goal: Analyse the auth module"),)


def converse(text, tools=CHAT, *, snapshot=SNAPSHOT, system="", results=RESULTS, tool_choice="auto"):
    """Play a message to its end, as the loop does; the calls that were made, and the last response."""
    context = (
        f"\n\n<context>\n{json.dumps({'snapshot': snapshot, 'snapshot_version': 1})}\n</context>" if snapshot else ""
    )
    messages = [LLMMessage("user", text + context)]
    made = []
    for _round in range(4):
        request = ModelRequest(messages=tuple(messages), tools=tuple(tools), system=system, tool_choice=tool_choice)
        response = LLM.call(request, on_event=lambda _event: None)
        check(response, tools)
        if not response.tool_calls or any(call["name"] == "create_plan" for call in response.tool_calls):
            return [*made, *(response.tool_calls or [])], response
        made.extend(response.tool_calls)
        messages.append(LLMMessage("assistant", response.content, tool_calls=tuple(response.tool_calls)))
        for call in response.tool_calls:
            envelope = {"success": True, "result": results.get(call["name"], {}), "error": None}
            messages.append(LLMMessage("tool", json.dumps(envelope), tool_call_id=call["id"], tool_name=call["name"]))
    raise AssertionError(f"no end in sight for {text!r}: {made}")


def check(response, tools):
    schemas = {tool["name"]: tool["input_schema"] for tool in tools}
    assert (response.stop_reason == "tool_use") == bool(response.tool_calls)
    assert response.usage["input_tokens"] > 0
    assert response.usage["output_tokens"] > 0
    for call in response.tool_calls or []:
        jsonschema.Draft202012Validator(schemas[call["name"]]).validate(call["arguments"])
