"""One pause for all processes of a key: who is told to wait tells the others (CAP-005)."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

logger = logging.getLogger("llm")

_AWAY_S = 5.0  # a Redis that did not answer is left alone for so long, as no call may wait for it each time

_PAUSE = """
local left = redis.call('pttl', KEYS[1])
if left < tonumber(ARGV[1]) then redis.call('set', KEYS[1], '1', 'px', ARGV[1]) end
return 1
"""


class Limiter(Protocol):
    """Knows until when no call may go out."""

    def wait_s(self) -> float:
        """Seconds until the next call may go out; 0 means now."""
        ...

    def pause(self, seconds: float) -> None:
        """Let no call go out for so long; a longer pause stays."""
        ...


class LocalLimiter:
    """The pause of this process alone.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until = float("-inf")

    def wait_s(self) -> float:
        """Seconds until the next call may go out."""
        return max(0.0, self._until - self._clock())

    def pause(self, seconds: float) -> None:
        """Let no call go out for so long; a longer pause stays."""
        with self._lock:
            self._until = max(self._until, self._clock() + seconds)


class SharedLimiter:
    """The pause of every process that uses the same provider, key and model.

    Redis holds it as a key that expires, so no two clocks are compared. While Redis is away each process keeps its own.

    Args:
        redis: a client (`redis.Redis`) with short socket timeouts.
        provider, api_key, model: whose pause it is; of the key only a hash leaves the process.
        local: this process's own pause, kept besides.
    """

    def __init__(
        self, redis: Any, *, provider: str, api_key: str, model: str, local: LocalLimiter | None = None
    ) -> None:
        self._redis = redis
        digest = hashlib.sha256(api_key.encode()).hexdigest()[:16]
        self.key = f"capstan:llm:pause:{provider}:{digest}:{model}"
        self._local = local or LocalLimiter()
        self._ask_again = float("-inf")

    def wait_s(self) -> float:
        """Seconds until the next call may go out."""
        left = self._ask(lambda: self._redis.pttl(self.key))
        return max(self._local.wait_s(), left / 1000 if isinstance(left, int) and left > 0 else 0.0)

    def pause(self, seconds: float) -> None:
        """Let no call go out for so long, in any process; a longer pause stays."""
        self._local.pause(seconds)
        milliseconds = max(1, round(seconds * 1000))
        self._ask(lambda: self._redis.eval(_PAUSE, 1, self.key, milliseconds))

    def _ask(self, question: Callable[[], Any]) -> Any:
        from redis.exceptions import RedisError

        if time.monotonic() < self._ask_again:
            return None
        try:
            return question()
        except (RedisError, OSError) as exc:
            self._ask_again = time.monotonic() + _AWAY_S
            logger.warning("the shared rate limit is out of reach (%s); this process keeps its own", exc)
            return None
