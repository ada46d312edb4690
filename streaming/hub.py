"""One pub/sub connection a process, fanned out to the streams that are open in it.

Signals only make streams faster. When Redis is away the hub tries again each second, and readers live on their pings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from uuid import UUID

import redis.asyncio as aioredis
from django.conf import settings
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from events.models import channel_of
from streaming.live import READ, key_of

logger = logging.getLogger(__name__)

ROWS: Final[dict[str, Any]] = {}  # the mark in a queue: read the rows
RECONNECT_S: Final = 1.0
CONFIRM_S: Final = 1.0
IDLE_S: Final = 5.0


class Subscription:
    """One reader's queue: live signals in order, with marks where rows are due."""

    def __init__(self, backlog: int) -> None:
        self._backlog = backlog
        self._queue: deque[dict[str, Any]] = deque()
        self._changed = asyncio.Event()
        self.lost = False

    def rows_due(self) -> None:
        """Rows may be new."""
        if not self._queue or self._queue[-1] is not ROWS:
            self._queue.append(ROWS)
        self._changed.set()

    def offer(self, signal: dict[str, Any]) -> None:
        """Queue a live signal. A reader that is too slow loses them all, and `lost` says so."""
        if len(self._queue) >= self._backlog:
            self._queue = deque([ROWS])
            self.lost = True
        else:
            self._queue.append(signal)
        self._changed.set()

    def forget_live(self) -> None:
        """Live signals may be missing from here on."""
        self.lost = True
        self.rows_due()

    async def take(self, timeout_s: float) -> list[dict[str, Any]]:
        """What is queued, waiting for the first for at most `timeout_s`; empty after that."""
        if not self._queue:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
        self._changed.clear()
        taken = list(self._queue)
        self._queue.clear()
        return taken


class Hub:
    """The subscriptions of one event loop. Made inside it."""

    def __init__(self) -> None:
        self._client = aioredis.Redis.from_url(
            settings.REDIS_URL,
            socket_connect_timeout=1,
            socket_timeout=2,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._readers: dict[str, set[Subscription]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}
        self._pubsub: Any = None
        self._task: asyncio.Task[None] | None = None
        self._down = False

    @asynccontextmanager
    async def subscribe(self, stream_id: UUID, *, backlog: int) -> AsyncIterator[Subscription]:
        """Listen to a stream. Inside, no signal is missed while Redis answers."""
        channel, subscription = channel_of(stream_id), Subscription(backlog)
        first = channel not in self._readers
        self._readers.setdefault(channel, set()).add(subscription)
        confirmed = self._confirmed.setdefault(channel, asyncio.Event())
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen(), name="stream-hub")
            elif first:
                await self._tell("subscribe", channel)
            if not self._down:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CONFIRM_S):
                        await confirmed.wait()
            yield subscription
        finally:
            readers = self._readers[channel]
            readers.discard(subscription)
            if not readers:
                del self._readers[channel], self._confirmed[channel]
                await self._tell("unsubscribe", channel)

    async def open_rounds(self, stream_id: UUID) -> list[dict[str, Any]]:
        """The signals that say all of a stream's open rounds so far; empty when Redis is away."""
        try:
            kept = await self._client.eval(READ, 1, key_of(stream_id))
        except (RedisError, OSError) as exc:
            logger.debug("no open rounds for %s: %s", stream_id, exc)
            return []
        signals: list[dict[str, Any]] = []
        for run, flat, text in kept:
            meta = dict(zip(flat[::2], flat[1::2], strict=True))
            if "closed" in meta:
                continue
            place = {"run": run, "round": int(meta["round"]), "fence": int(meta["fence"])}
            if text:
                signals.append({"event": "token", **place, "offset": 0, "text": text})
            if "wait" in meta and (left := float(meta["wait_until"]) - time.time()) > 0:
                signals.append({**json.loads(meta["wait"]), "delay_s": round(left, 1)})
            signals.extend(json.loads(meta[name]) for name in sorted(meta) if name.startswith("tool:"))
        return signals

    async def aclose(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._client.aclose()

    async def _tell(self, command: str, channel: str) -> None:
        if self._pubsub is None:
            return  # `_listen` subscribes to all when it connects
        try:
            await getattr(self._pubsub, command)(channel)
        except (RedisError, OSError) as exc:
            logger.debug("%s of %s: %s", command, channel, exc)

    async def _listen(self) -> None:
        while self._readers:
            pubsub = self._client.pubsub()
            try:
                wanted = set(self._readers)
                await pubsub.subscribe(*wanted)
                self._pubsub = pubsub
                if late := set(self._readers) - wanted:
                    await pubsub.subscribe(*late)
                self._answered()
                while self._readers:
                    message = await pubsub.get_message(timeout=IDLE_S)
                    if message is not None:
                        self._deliver(message)
            except (RedisError, OSError) as exc:
                self._failed(exc)
                await asyncio.sleep(RECONNECT_S)
            finally:
                self._pubsub = None
                with suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _answered(self) -> None:
        if self._down:
            logger.info("Redis answers again, streams are live")
            for readers in self._readers.values():
                for subscription in readers:
                    subscription.forget_live()
        self._down = False

    def _failed(self, exc: BaseException) -> None:
        if not self._down:
            logger.warning("Redis does not answer, streams wait for their pings: %s", exc)
        self._down = True
        for confirmed in self._confirmed.values():
            confirmed.set()  # nobody waits for what cannot come

    def _deliver(self, message: dict[str, Any]) -> None:
        channel = message["channel"]
        if message["type"] == "subscribe":
            if channel in self._confirmed:
                self._confirmed[channel].set()
        elif message["type"] == "message":
            signal = json.loads(message["data"]) if message["data"] else None
            for subscription in self._readers.get(channel, ()):
                if signal is None:
                    subscription.rows_due()
                else:
                    subscription.offer(signal)
