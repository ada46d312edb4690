"""Signals over Redis: they may vanish at any moment, and nothing depends on them (design § 2.1)."""

from __future__ import annotations

from uuid import UUID

import redis

from events.models import channel_of
from streaming.connection import circuit, client
from streaming.live import LiveRound

__all__ = ["LiveRound", "client", "wake"]


def wake(stream_id: UUID) -> None:
    """Tell the readers of a stream that new rows are there; a dead Redis costs them a ping's time and us nothing."""
    if circuit.wait_s():
        return
    try:
        client().publish(channel_of(stream_id), "")
    except (redis.RedisError, OSError) as exc:
        circuit.failed(exc)
    else:
        circuit.worked()
