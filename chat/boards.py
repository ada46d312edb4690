"""A conversation's board, kept in the unit of the round whose reply wrote it (CAP-071 – 073)."""

from __future__ import annotations

from dataclasses import dataclass

from blackboard.replies import ReplyBoard
from chat.models import Conversation, Turn
from events.models import EventRecord
from events.types import EventName
from tools.units import Unit


@dataclass(slots=True, kw_only=True)
class TurnBoard(ReplyBoard):
    """The board of a turn's replies, and where it is stored."""

    turn: Turn

    def news(self) -> list[EventRecord]:
        """What came of the reply's block; empty when it had none."""
        told = self.told
        if told is None:
            return []
        return [EventRecord(EventName.BLACKBOARD, {"run": f"turn:{self.turn.pk}", "turn_id": self.turn.pk, **told})]

    def keep(self, unit: Unit) -> None:
        """Store the reply's board when its unit closes; whoever sets another closing stores it there."""
        if self.told is None:
            return
        unit.events.extend(self.news())
        unit.after_commit(self.stored)
        unit.close_with(self.store)

    def store(self) -> None:
        """Under the locks of stream and run, as every other write to the conversation's row."""
        if self.written is not None:
            Conversation.objects.filter(pk=self.turn.conversation_id).update(board=self.written)
