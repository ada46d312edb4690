"""A history in each provider's own words, written by the adapters that send it, and held against the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llm.types import LLMMessage, ModelRequest, ProviderBlocks, SystemBlock, ToolCall
from tests.fixtures.cases import payload_rules
from tests.llm.samples import MODELS, WEATHER, adapter

NOWHERE = "http://127.0.0.1:9"
WIRES = ("anthropic", "openai_chat", "openai_responses", "ollama")
SYSTEM = (SystemBlock("Foundation."), SystemBlock("Identity.", cache=True))


@cache
def _adapter(wire: str) -> Any:
    return adapter(wire, NOWHERE)


def payload(wire: str, messages: Sequence[LLMMessage]) -> dict[str, Any]:
    """The body that the wire's adapter would send."""
    request = ModelRequest(messages=tuple(messages), system=SYSTEM, tools=(WEATHER,), max_tokens=500)
    options = {} if wire == "anthropic" else {"stream": True}
    body: dict[str, Any] = _adapter(wire).payload(request, **options)
    return body


def blocks_of(wire: str, text: str, calls: Sequence[ToolCall]) -> ProviderBlocks:
    """A reply as the wire's model would have made it, thinking first."""
    if wire == "anthropic":
        items: list[dict[str, Any]] = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
        items += [{"type": "text", "text": text}] if text else []
        items += [{"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["arguments"]} for c in calls]
    else:
        items = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}]
        items += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
        items += [{"type": "function_call", "call_id": c["id"], "name": c["name"], "arguments": "{}"} for c in calls]
    return ProviderBlocks(provider=wire, model=MODELS[wire], items=items)


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The items of the Responses wire as chat messages, whose rules they share."""
    messages: list[dict[str, Any]] = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "reasoning":
            continue
        if kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item["name"], "arguments": item["arguments"]}
            messages[-1].setdefault("tool_calls", []).append({"id": item["call_id"], "function": function})
        else:
            messages.append({"role": item["role"], "content": item["content"]})
    return {"messages": messages}


CHECKS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "anthropic": payload_rules.check_anthropic,
    "openai_chat": payload_rules.check_openai,
    "openai_responses": lambda body: payload_rules.check_openai(as_chat(body)),
    "ollama": payload_rules.check_ollama,
}


def broken_rules(messages: Sequence[LLMMessage]) -> dict[str, list[str]]:
    """The rules that each provider's request breaks; nothing when all is well."""
    found = {wire: CHECKS[wire](payload(wire, messages)) for wire in WIRES}
    marks = sum("cache_control" in str(part) for part in _marked(payload("anthropic", messages)))
    if marks > 4:
        found["anthropic"].append(f"{marks} cache marks, 4 are taken")
    return {wire: rules for wire, rules in found.items() if rules}


def _marked(body: dict[str, Any]) -> list[Any]:
    return [*body["system"], *body["tools"], *(block for message in body["messages"] for block in message["content"])]
