"""One open stream: rows after the client's place, then what comes, in an order that repeats nothing (design § 7)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, connections
from psycopg_pool import PoolTimeout

from events.models import Event, Stream
from streaming.errors import StreamRefused, StreamUnavailable
from streaming.hub import ROWS, Hub, Subscription
from streaming.markdown import render_markdown
from streaming.ports import StreamGate
from streaming.settings import StreamSettings
from streaming.types import Grant, StreamRequest
from streaming.wire import PING, encode, event_id_of, position_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The text of these events is Markdown; it is rendered when it is sent.
MARKDOWN_FIELDS = {"ai_message": "text", "plan_step": "synthesis", "plan_completed": "result"}
REGRANT_ON = ("plan_created", "plan_adapted")


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it goes out."""

    seq: int
    name: str
    payload: dict[str, Any]


class DatabaseDoor:
    """Short visits to the database from the event loop: a few threads of its own, connections given back after each."""

    def __init__(self, slots: int) -> None:
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="streams")

    async def visit(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread.

        Raises:
            StreamUnavailable: the database does not answer.
        """

        def then_close() -> T:
            try:
                return work()
            finally:
                connections.close_all()

        loop, context = asyncio.get_running_loop(), copy_context()
        try:
            return await loop.run_in_executor(self._threads, context.run, then_close)
        except (DatabaseError, InterfaceError, PoolTimeout) as exc:
            raise StreamUnavailable from exc


def _payload_of(event: Event) -> dict[str, Any]:
    payload = {**event.payload, "correlation_id": event.correlation_id, "at": event.created_at.isoformat()}
    text = event.payload.get(MARKDOWN_FIELDS.get(event.name, ""))
    if isinstance(text, str) and text:
        payload["html"] = render_markdown(text)
    return payload


def rows_after(grant: Grant, seq: int, limit: int) -> tuple[list[Row], int]:
    """The next rows that the grant shows, and how far was read: the number of the last row, shown or not."""
    events = list(Event.objects.filter(stream=grant.stream_id, seq__gt=seq).order_by("seq")[:limit])
    shown = [Row(seq=e.seq, name=e.name, payload=_payload_of(e)) for e in events if grant.shows(e.payload)]
    return shown, events[-1].seq if events else seq


class StreamReader:
    """Writes one client's stream.

    Args:
        last_id: `Last-Event-ID` or `?after=`; empty for the whole stream.
    """

    def __init__(
        self,
        request: StreamRequest,
        *,
        grant: Grant,
        last_id: str,
        gate: StreamGate,
        hub: Hub,
        door: DatabaseDoor,
        options: StreamSettings,
    ) -> None:
        self.request, self.grant, self.last_id = request, grant, last_id
        self.gate, self.hub, self.door, self.options = gate, hub, door, options
        self._seq = 0
        self._fences: dict[str, int] = {}
        self._rounds: dict[str, int] = {}  # the last round of each run whose message is a row by now
        self._regrant = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream's bytes, until it ends or its right does.

        Raises:
            StreamUnavailable: the database stopped answering.
        """
        async with self.hub.subscribe(self.grant.stream_id, backlog=self.options.live_backlog) as subscription:
            async for chunk in self._replay():
                yield chunk
            if self.grant.ended:
                yield encode("stream_end", {"reason": "ended"})
                return
            async for chunk in self._open_rounds():
                yield chunk
            yield encode("caught_up", {"last_id": event_id_of(self.grant.stream_id, self._seq)})
            async for chunk in self._follow(subscription):
                yield chunk

    async def _replay(self) -> AsyncGenerator[bytes, None]:
        place = position_of(self.last_id, self.grant.stream_id) if self.last_id else 0
        if place:
            last = await self.door.visit(
                lambda: Stream.objects.filter(pk=self.grant.stream_id).values_list("last_seq", flat=True).first()
            )
            place = None if last is None or place > last else place
        if place is None:
            yield encode("resync", {"reason": "unknown_id"})  # what follows is the whole stream
        self._seq = place or 0
        async for chunk in self._rows():
            yield chunk

    async def _follow(self, subscription: Subscription) -> AsyncGenerator[bytes, None]:
        ping_due = time.monotonic() + self.options.ping_s * random.uniform(0.5, 1)  # noqa: S311  # spreads the readers
        while True:
            for signal in await subscription.take(max(0.0, ping_due - time.monotonic())):
                if signal is ROWS:
                    async for chunk in self._rows():
                        yield chunk
                elif self._fresh(signal):
                    yield encode(signal["event"], signal)
            if subscription.lost:
                subscription.lost = False
                async for chunk in self._open_rounds():
                    yield chunk
            if time.monotonic() >= ping_due or self._regrant:
                ping_due = time.monotonic() + self.options.ping_s
                self._regrant = False
                try:
                    async for chunk in self._rows(ask_again=True):
                        yield chunk
                except StreamUnavailable:
                    raise
                except StreamRefused as exc:
                    yield encode("stream_end", {"reason": exc.code})
                    return
                if self.grant.ended:
                    yield encode("stream_end", {"reason": "ended"})
                    return
                yield PING

    async def _rows(self, *, ask_again: bool = False) -> AsyncGenerator[bytes, None]:
        """The rows that are new; with `ask_again` the right to read them is checked first."""
        while True:
            before = self._seq
            self.grant, rows, self._seq = await self.door.visit(partial(self._read, before, ask_again))
            for row in rows:
                self._remember(row)
                yield encode(row.name, row.payload, event_id=event_id_of(self.grant.stream_id, row.seq))
            if self._seq - before < self.options.batch:
                return

    def _read(self, seq: int, ask_again: bool) -> tuple[Grant, list[Row], int]:
        grant = self.gate(self.request) if ask_again else self.grant
        return grant, *rows_after(grant, seq, self.options.batch)

    async def _open_rounds(self) -> AsyncGenerator[bytes, None]:
        for signal in await self.hub.open_rounds(self.grant.stream_id):
            if self._fresh(signal):
                yield encode(signal["event"], signal)

    def _remember(self, row: Row) -> None:
        """A round whose message is a row needs no live text any more."""
        run, number = row.payload.get("run"), row.payload.get("round")
        if row.name == "ai_message" and isinstance(run, str) and isinstance(number, int):
            self._rounds[run] = max(self._rounds.get(run, 0), number)
        if self.grant.plan_id is not None and row.name in REGRANT_ON:
            self._regrant = True
        if row.name in ("plan_completed", "plan_failed", "plan_cancelled") and self.grant.plan_id is not None:
            self._regrant = True

    def _fresh(self, signal: dict[str, Any]) -> bool:
        """Whether a live signal still says something: of the newest owner, and of a round that has no row yet."""
        run = signal["run"]
        if not self.grant.shows(signal) or signal["fence"] < self._fences.get(run, 0):
            return False
        self._fences[run] = signal["fence"]
        return bool(signal["round"] > self._rounds.get(run, 0) or signal["event"] == "tool_start")
