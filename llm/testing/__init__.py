"""What tests drive the product with: a scripted model in this process, or one behind a loopback server."""

from llm.testing.gate import Gate
from llm.testing.replies import (
    Reply,
    Script,
    ScriptExhausted,
    When,
    after,
    call,
    calls,
    cut,
    held,
    last_user_text,
    load,
    offers,
    say,
    user_said,
)
from llm.testing.scripted import ScriptedLLM

__all__ = [
    "Gate",
    "Reply",
    "Script",
    "ScriptExhausted",
    "ScriptedLLM",
    "When",
    "after",
    "call",
    "calls",
    "cut",
    "held",
    "last_user_text",
    "load",
    "offers",
    "say",
    "user_said",
]
