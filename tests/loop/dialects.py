"""The normalised history in each provider's own words, as plainly as it can be put, for the rules of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from llm.types import LLMMessage
from tests.fixtures.cases import payload_rules


def openai(messages: Sequence[LLMMessage]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for m in messages:
        if m.role == "tool":
            out.append({"role": "tool", "tool_call_id": m.tool_call_id, "content": m.content})
        elif m.tool_calls:
            calls = [
                {
                    "id": c["id"],
                    "type": "function",
                    "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])},
                }
                for c in m.tool_calls
            ]
            out.append({"role": "assistant", "content": m.content or None, "tool_calls": calls})
        else:
            out.append({"role": m.role, "content": m.content})
    return {"messages": out}


def anthropic(messages: Sequence[LLMMessage]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for m in messages:
        role = "assistant" if m.role == "assistant" else "user"
        if m.role == "tool":
            block = {"type": "tool_result", "tool_use_id": m.tool_call_id, "content": m.content, "is_error": m.is_error}
            blocks = [block]
        else:
            blocks = [{"type": "text", "text": m.content}] if m.content else []
            blocks += [
                {"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["arguments"]} for c in m.tool_calls
            ]
        if out and out[-1]["role"] == role == "user":
            out[-1]["content"].extend(blocks)
        else:
            out.append({"role": role, "content": blocks})
    return {"messages": out}


def ollama(messages: Sequence[LLMMessage]) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for m in messages:
        if m.role == "tool":
            out.append({"role": "tool", "tool_name": m.tool_name, "content": m.content})
        else:
            calls = [{"function": {"name": c["name"], "arguments": c["arguments"]}} for c in m.tool_calls]
            out.append({"role": m.role, "content": m.content, **({"tool_calls": calls} if calls else {})})
    return {"messages": out}


DIALECTS: dict[str, tuple[Callable[[Sequence[LLMMessage]], dict[str, Any]], Callable[[dict[str, Any]], list[str]]]] = {
    "openai": (openai, payload_rules.check_openai),
    "anthropic": (anthropic, payload_rules.check_anthropic),
    "ollama": (ollama, payload_rules.check_ollama),
}


def broken_rules(messages: Sequence[LLMMessage]) -> dict[str, list[str]]:
    """The rules that each dialect finds broken; nothing when all is well."""
    found = {name: check(write(messages)) for name, (write, check) in DIALECTS.items()}
    return {name: rules for name, rules in found.items() if rules}
