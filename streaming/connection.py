"""This process's way to Redis, and the pause after a failure: signals may get lost, but cost their sender no time."""

from __future__ import annotations

import logging
import time
from functools import cache

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 1.0
SOCKET_TIMEOUT_S = 2.0
PAUSE_S = 1.0
HUNG_PAUSE_S = 5.0


@cache
def client() -> redis.Redis:
    """This process's connection pool to Redis. It never retries: who sends a signal does not wait for it."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )


class Circuit:
    """After a failure nothing is tried for a while, so that a dead Redis costs one time-out and not one a signal.

    Args:
        pause_s: seconds after a refusal, which costs no time.
        hung_pause_s: seconds after a Redis that took the connection and said nothing, which costs a whole time-out.
    """

    def __init__(self, pause_s: float = PAUSE_S, hung_pause_s: float = HUNG_PAUSE_S) -> None:
        self.pause_s, self.hung_pause_s = pause_s, hung_pause_s
        self._closed_from = 0.0
        self._down = False

    def wait_s(self) -> float:
        """Seconds until the next try; 0 when Redis may be used."""
        return max(0.0, self._closed_from - time.monotonic())

    def failed(self, exc: BaseException) -> None:
        """Pause; the first failure in a row is logged."""
        pause_s = self.hung_pause_s if isinstance(exc, (redis.TimeoutError, TimeoutError)) else self.pause_s
        self._closed_from = time.monotonic() + pause_s
        if not self._down:
            logger.warning("Redis does not answer, live signals pause: %s", exc)
        self._down = True

    def worked(self) -> None:
        """Redis answered."""
        if self._down:
            logger.info("Redis answers again")
        self._down = False


circuit = Circuit()
