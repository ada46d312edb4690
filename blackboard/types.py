"""What a board holds, and how a model writes it (CAP-070)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KEYS = ("phase", "hypothesis", "current_plan", "last_actions", "next_intent")
MAX_CHARS = 500  # of all values together
OPENING, CLOSING = "<board>", "</board>"

Board = dict[str, str]

INSTRUCTIONS = f"""\
# Your board

You keep a board of at most {MAX_CHARS} characters for your own orientation; the newest one stands in the context block.
When it should change, end your answer with one block and nothing behind it:
{OPENING}{{"phase": "…", "hypothesis": "…", "current_plan": "…", "last_actions": "…", "next_intent": "…"}}{CLOSING}
Leave out the keys that do not matter. People never see the block; do not speak of it."""


@dataclass(frozen=True, slots=True)
class Extract:
    """A model's text taken apart.

    Args:
        visible: what people see.
        board: what the block says, allow-listed and cut; None when there is no block, or nothing can be read in it.
        had_block: a block began, whether or not it could be read.
    """

    visible: str
    board: Board | None
    had_block: bool

    @property
    def told(self) -> dict[str, Any]:
        """What the event says of it."""
        return {"status": "retain" if self.board is None else "set", "board": self.board}
