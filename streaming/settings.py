"""What `streaming` asks of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How streams behave.

    Args:
        ping_s: seconds between two pings; rights are checked and rows read again at each.
        send_timeout_s: a client that takes nothing for so many seconds is dropped.
        batch: rows read from the database at once.
        live_backlog: live signals kept for a client that reads slowly; past it they are dropped and the open text is
            sent anew once the client catches up. Rows are never dropped.
        database_slots: readers of one process that use the database at the same time.
    """

    ping_s: float = 15.0
    send_timeout_s: float = 60.0
    batch: int = 200
    live_backlog: int = 256
    database_slots: int = 6

    @classmethod
    def from_django(cls) -> Self:
        """Read Django's settings.

        Raises:
            ValueError: STREAM_PING_SECONDS is not a positive number.
        """
        ping_s = float(getattr(settings, "STREAM_PING_SECONDS", 15))
        if ping_s <= 0:
            raise ValueError(f"STREAM_PING_SECONDS must be more than 0, not {ping_s}")
        return cls(ping_s=ping_s)
