"""One board, two stores: in memory, or JSON on the row of whoever owns it (CAP-072, CAP-073)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from blackboard.extract import extract
from blackboard.types import Board


class BoardStore(Protocol):
    """Where a board is kept between two texts."""

    def load(self) -> Board:
        """The board as it is; empty at first."""
        ...

    def save(self, board: Board) -> None:
        """Replace it."""
        ...


@dataclass(slots=True)
class MemoryStore:
    """Tier A: as long as the object lives."""

    board: Board = field(default_factory=dict)

    def load(self) -> Board:
        return dict(self.board)

    def save(self, board: Board) -> None:
        self.board = dict(board)


@dataclass(slots=True)
class Blackboard:
    """A board over a store."""

    store: BoardStore = field(default_factory=MemoryStore)

    @property
    def data(self) -> Board:
        return self.store.load()

    def set_from_model_text(self, text: str) -> bool:
        """Take the board out of a model's text; False keeps the old one, as does a block that cannot be read.

        Source: CAP-072.
        """
        found = extract(text)
        if found.board is None:
            return False
        self.store.save(found.board)
        return True
