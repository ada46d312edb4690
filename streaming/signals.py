"""Signals over Redis: they may vanish at any moment, and nothing depends on them (design § 2.1)."""

from __future__ import annotations

import logging
from functools import cache
from uuid import UUID

import redis
from django.conf import settings

from events.models import channel_of

logger = logging.getLogger(__name__)


@cache
def client() -> redis.Redis:
    """This process's connection pool to Redis."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=1, decode_responses=True)


def wake(stream_id: UUID) -> None:
    """Tell the readers of a stream that new rows are there; a dead Redis is logged and costs them a ping's time."""
    try:
        client().publish(channel_of(stream_id), "")
    except redis.RedisError as exc:
        logger.warning("no wake-up for stream %s: %s", stream_id, exc)
