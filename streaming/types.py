"""Values that cross between the SSE handler and whoever decides who may read a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a client asks for, and by which right.

    Args:
        kind: `conversation` or `plan`.
        key: the conversation's UUID or the plan's number, as text.
        session_key: from the session cookie; empty when there is none.
        token: from `Authorization: Token …`; empty when there is none.
    """

    kind: str
    key: str
    session_key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """What the client may read.

    Args:
        stream_id: the stream whose rows these are.
        plan_id: show only what belongs to this plan; None shows all of the stream.
        runs: the plan's runs (`step:34`), when `plan_id` is set.
        ended: no further event can come; the stream ends after its last row.
    """

    stream_id: UUID
    plan_id: int | None = None
    runs: frozenset[str] = frozenset()
    ended: bool = False

    def shows(self, payload: Mapping[str, Any]) -> bool:
        """Whether an event with this payload may be sent."""
        if self.plan_id is None:
            return True
        return payload.get("plan_id") == self.plan_id or payload.get("run") in self.runs
