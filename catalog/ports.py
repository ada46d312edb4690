"""What `catalog` needs from outside."""

from __future__ import annotations

from typing import Any, Protocol


class FieldAgent(Protocol):
    """Answers one batch of candidates; `factory.FieldAgent` is one."""

    def extract_candidates(self, snapshot: str) -> list[dict[str, Any]]:
        """The objects of the model's JSON array.

        Raises:
            factory.ExtractError: the answer was no JSON array of objects (CAP-009).
        """
        ...
