"""A request laid out for people: layer by layer, with estimated tokens and its cache marks (CAP-020)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from llm.tokens import CHARACTERS_A_TOKEN
from llm.types import LLMMessage, SystemBlock, ToolSchema
from loop.history import estimate_tokens, size_of

LAYERS = ("1 foundation", "2 identity", "3 recipe and run")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a request.

    Args:
        title: its layer, or its role in the history.
        tokens: estimated from its characters.
        cached: a cache mark stands behind it: the provider may keep everything up to here.
    """

    title: str
    text: str
    tokens: int
    cached: bool = False


NO_REQUEST = Part(title="no request", text="It ended before its model was asked anything.", tokens=0)


def parts_of(
    *, tools: Sequence[ToolSchema], system: Sequence[SystemBlock], messages: Sequence[LLMMessage]
) -> list[Part]:
    """The parts of a request, in the order in which a provider's cache reads them."""
    schemas = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in tools)
    return [
        _part(f"tools ({len(tools)})", schemas),
        *(_part(f"layer {LAYERS[min(n, 2)]}", block.text, cached=block.cache) for n, block in enumerate(system)),
        *(_message(message) for message in messages),
    ]


def _part(title: str, text: str, *, cached: bool = False) -> Part:
    return Part(title=title, text=text, tokens=int(size_of(text) / CHARACTERS_A_TOKEN) + 1, cached=cached)


def _message(message: LLMMessage) -> Part:
    calls = [f"→ {call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in message.tool_calls]
    title = f"tool result {message.tool_name}" if message.role == "tool" else message.role
    if message.blocks is not None:
        title += ", as its model made it, thinking included"
    text = "\n".join([message.content, *calls] if message.content else calls)
    return Part(title=title, text=text, tokens=estimate_tokens(message), cached=message.cache)
