"""What the model reads of a result: the whole, or head and tail with a handle to page through the rest (CAP-031)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tools.types import Envelope

BYTES_PER_TOKEN = 4  # a rule of thumb that no provider's tokenizer is far above
SMALLEST_SHARE = 200  # tokens that a result gets even when its round has used up all
HEAD = 0.7  # of what is shown


@dataclass(frozen=True, slots=True)
class Page:
    """A result as text.

    Args:
        text: a text result itself, anything else as compact JSON.
        is_json: which of the two.
    """

    text: str
    is_json: bool


def page_of(result: Any) -> Page:
    """The text that heads, tails and offsets of `result` refer to."""
    return Page(result, is_json=False) if isinstance(result, str) else Page(as_text(result), is_json=True)


def as_text(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def estimated_tokens(text: str) -> int:
    """About how many tokens `text` is."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def marked(tool_name: str, content: str, *, failed: bool = False) -> str:
    """`content` between marks that nothing inside can close, so that output stays data."""
    name = "".join(character for character in tool_name if character.isalnum() or character in "_-")[:64]
    mark = ' error="true"' if failed else ""
    inside = content.replace("</", "<\\/")
    return f'<tool_result tool="{name}"{mark}>\n{inside}\n</tool_result>'


def told(tool_name: str, envelope: Envelope) -> str:
    """The whole of a result, or the error, as the model reads it."""
    if envelope["success"]:
        return marked(tool_name, as_text(envelope["result"]))
    return marked(tool_name, as_text({"error": envelope["error"]}), failed=True)


def cut(tool_name: str, page: Page, *, handle: str, tokens: int) -> str:
    """Head and tail of a big result, with the handle that `read_result` takes."""
    shown = characters_for(page.text, tokens)
    head = int(shown * HEAD)
    tail = shown - head
    left_out = len(page.text) - shown
    note = (
        f"[{left_out} of {len(page.text)} characters left out here;"
        f' read_result(handle="{handle}", offset={head}) goes on from the head]'
    )
    return marked(tool_name, f"{page.text[:head]}\n{note}\n{page.text[-tail:]}")


def characters_for(text: str, tokens: int) -> int:
    """How many characters of `text` are about `tokens` tokens."""
    size = max(1, estimated_tokens(text))
    return max(2, min(len(text), len(text) * tokens // size))
