"""Where an event is handed in while its unit is still open."""

from __future__ import annotations

from typing import Any, Protocol

from events.types import EventName


class EventSink(Protocol):
    def record(self, name: EventName, **payload: Any) -> None:
        """Write the event when the unit ends; `payload` is plain JSON."""
        ...
