"""A conversation's board, kept in the unit of the round whose reply wrote it (CAP-071 – 073)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blackboard.extract import extract
from blackboard.types import Board, Extract
from chat.models import Conversation, Turn
from events.models import EventRecord
from events.types import EventName
from tools.units import Unit


@dataclass(slots=True)
class TurnBoard:
    """Takes the board out of a turn's replies.

    Args:
        kept: whether the turn's agent keeps a board; else its text is left alone.
    """

    turn: Turn
    kept: bool
    _found: Extract | None = None  # of the reply that is being stored, until it has committed

    def take(self, text: str) -> str:
        """What people see of a reply; the board in it waits for the reply's unit."""
        found = extract(text) if self.kept else None
        self._found = found if found is not None and found.had_block else None
        return text if found is None else found.visible

    def visible(self, text: str) -> str:
        """What people see of a text, and nothing else."""
        return extract(text).visible if self.kept else text

    @property
    def written(self) -> Board | None:
        """The board that the reply wrote; None keeps the old one (CAP-072)."""
        return None if self._found is None else self._found.board

    def news(self) -> list[EventRecord]:
        """What came of the reply's block; empty when it had none."""
        if self._found is None:
            return []
        told: dict[str, Any] = {"run": f"turn:{self.turn.pk}", "turn_id": self.turn.pk, **self._found.told}
        return [EventRecord(EventName.BLACKBOARD, told)]

    def keep(self, unit: Unit) -> None:
        """Store the reply's board when its unit closes; whoever sets another closing stores it there."""
        if self._found is None:
            return
        unit.events.extend(self.news())
        unit.after_commit(self.stored)
        unit.close_with(self.store)

    def store(self) -> None:
        """Under the locks of stream and run, as every other write to the conversation's row."""
        if self.written is not None:
            Conversation.objects.filter(pk=self.turn.conversation_id).update(board=self.written)

    def stored(self) -> None:
        """The reply has committed, and its board with it."""
        self._found = None
