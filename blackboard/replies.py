"""The board that a run's replies write: taken out of what people see, until the reply's unit has it (CAP-071, 072)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blackboard.extract import extract
from blackboard.types import Board, Extract


@dataclass(slots=True, kw_only=True)
class ReplyBoard:
    """Takes the board out of the replies of a turn or a step, each of which is read once.

    Args:
        kept: whether the run's agent keeps a board; else its text is left alone.
    """

    kept: bool
    _said: str = field(default="", init=False)  # the reply that was read last
    _read: Extract = field(default=Extract("", None, had_block=False), init=False)
    _stored: bool = field(default=True, init=False)

    def take(self, text: str) -> str:
        """What people see of a reply; the board in it waits for the reply's unit."""
        self._said, self._read = text, self._parts(text)
        self._stored = not self._read.had_block
        return self._read.visible

    def visible(self, text: str) -> str:
        """What people see of a text, and nothing else."""
        return self._read.visible if text == self._said else self._parts(text).visible

    @property
    def written(self) -> Board | None:
        """The board that the reply being stored wrote; None keeps the old one (CAP-072)."""
        return None if self._stored else self._read.board

    @property
    def told(self) -> dict[str, Any] | None:
        """What the event says of the reply's block; None when it had none."""
        return None if self._stored else self._read.told

    def stored(self) -> None:
        """The reply has committed, and its board with it."""
        self._stored = True

    def _parts(self, text: str) -> Extract:
        return extract(text) if self.kept else Extract(text, None, had_block=False)
