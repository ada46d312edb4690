"""An estimate of tokens, for budgets where no provider's own counter is asked."""

from __future__ import annotations

import json
import math
import string

from llm.types import ModelRequest

_LETTERS = string.ascii_letters.encode()
_DIGITS = string.digits.encode()
_BLANKS = string.whitespace.encode()
CHARACTERS_A_TOKEN = 3.5  # the coarser estimate of `loop` and `context`, which count other scripts by their bytes
MESSAGE_TOKENS = 5  # what the wire's framing of one message takes


def estimate_tokens(text: str) -> int:
    """About how many tokens a text takes: an estimate, for English, code and JSON mostly within a fifth of a BPE count.

    Never 0 for a text that is not empty, and never less for a longer text with the same beginning.
    """
    if not text:
        return 0
    plain = text.encode("ascii", "ignore")
    letters = len(plain) - len(plain.translate(None, _LETTERS))
    digits = len(plain) - len(plain.translate(None, _DIGITS))
    blanks = len(plain) - len(plain.translate(None, _BLANKS))
    signs = len(plain) - letters - digits - blanks
    other = len(text.encode("utf-8", "surrogatepass")) - len(plain)
    return math.ceil(letters / 4.3 + digits / 2.2 + signs / 1.6 + blanks / 12 + other / 2.6)


def estimate_request(request: ModelRequest) -> int:
    """About how many tokens a whole request takes, its tools included."""
    system = request.system if isinstance(request.system, str) else "".join(block.text for block in request.system)
    total = estimate_tokens(system)
    for message in request.messages:
        total += MESSAGE_TOKENS + estimate_tokens(message.content)
        for call in message.tool_calls:
            total += MESSAGE_TOKENS + estimate_tokens(call["name"]) + estimate_tokens(json.dumps(call["arguments"]))
    for tool in request.tools:
        total += MESSAGE_TOKENS + estimate_tokens(tool["name"]) + estimate_tokens(tool["description"])
        total += estimate_tokens(json.dumps(tool["input_schema"]))
    return total
