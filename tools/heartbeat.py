"""One heartbeat thread a process: it renews the leases of its runs and reads their cancel flags (design § 6).

The thread has a connection of its own, outside the pool, so it never waits for a slot. A run whose renewal is refused,
whose deadline has passed or that somebody cancelled gets its token cancelled, with `lease_lost`, `deadline` or `cancel`
as the reason; the fence of the unit stays the proof.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from llm.ports import CancelToken
from tools.runs import LeasedRun, RunRef

logger = logging.getLogger(__name__)

FLAGS_EVERY_S = 0.5


def owner_name() -> str:
    """What this process is called in `lease_owner`."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(slots=True)
class Watch:
    """One watched run."""

    run: RunRef
    cancel: CancelToken
    deadline: float

    def extend(self, seconds: float) -> None:
        """A new unit begins: it may take `seconds` from now."""
        self.deadline = time.monotonic() + seconds


class _Keeper:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[tuple[type[LeasedRun], int, int], Watch] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def add(self, watch: Watch) -> None:
        with self._lock:
            if self._pid != os.getpid():  # threads do not survive a fork
                self._watches.clear()
                self._thread, self._pid = None, os.getpid()
            self._watches[self._key(watch)] = watch
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
                self._thread.start()
        self._wake.set()

    def remove(self, watch: Watch) -> None:
        with self._lock:
            self._watches.pop(self._key(watch), None)

    def cancel_all(self, reason: str) -> int:
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.cancel.cancel(reason)
        return len(watches)

    def count(self) -> int:
        with self._lock:
            return len(self._watches)

    @staticmethod
    def _key(watch: Watch) -> tuple[type[LeasedRun], int, int]:
        return watch.run.model, watch.run.pk, watch.run.fence

    def _beat(self) -> None:
        own: BaseDatabaseWrapper | None = None
        renewed = time.monotonic()
        try:
            while True:
                with self._lock:
                    watches = list(self._watches.values())
                if not watches:
                    if own is not None:
                        own.close()
                        own = None
                    self._wake.wait()
                    self._wake.clear()
                    renewed = time.monotonic()
                    time.sleep(_pause_s())  # most plans of small steps have ended by then, and cost no connection
                    continue
                try:
                    own = own or _own_connection()
                    self._check(own, watches)
                    if time.monotonic() - renewed >= settings.CAPSTAN_LEASE_SECONDS / 3:
                        renewed = time.monotonic()
                        self._renew(own, watches)
                except Error as exc:
                    logger.warning("heartbeat of %d runs missed: %s", len(watches), exc)
                    if own is not None:
                        own.close()
                        own = None
                time.sleep(_pause_s())
        finally:
            if own is not None:
                own.close()

    def _check(self, own: BaseDatabaseWrapper, watches: Sequence[Watch]) -> None:
        now = time.monotonic()
        for watch in watches:
            if now > watch.deadline:
                watch.cancel.cancel("deadline")
        for model, group in _by_model(watches).items():
            with own.cursor() as cursor:
                cursor.execute(
                    f"SELECT id, fence, status = 'running', cancel_requested_at IS NOT NULL "  # noqa: S608
                    f"FROM {model._meta.db_table} WHERE id = ANY(%s)",
                    [[watch.run.pk for watch in group]],
                )
                rows = {row[0]: row[1:] for row in cursor.fetchall()}
            for watch in group:
                fence, running, cancelled = rows.get(watch.run.pk, (None, False, False))
                if fence != watch.run.fence or not running:
                    watch.cancel.cancel("lease_lost")
                elif cancelled:
                    watch.cancel.cancel("cancel")

    def _renew(self, own: BaseDatabaseWrapper, watches: Sequence[Watch]) -> None:
        alive = [watch for watch in watches if time.monotonic() <= watch.deadline]
        for model, group in _by_model(alive).items():
            table = model._meta.db_table
            with own.cursor() as cursor:
                # Rows locked by their own units are skipped: the unit's last statement renews them.
                cursor.execute(
                    f"""WITH held AS MATERIALIZED (
                            SELECT r.id FROM {table} r JOIN unnest(%s::bigint[], %s::bigint[]) h(id, fence)
                            USING (id, fence) WHERE r.status = 'running' FOR NO KEY UPDATE OF r SKIP LOCKED)
                        UPDATE {table} r SET lease_until = clock_timestamp() + %s * interval '1 second'
                        FROM held WHERE r.id = held.id""",  # noqa: S608
                    [
                        [watch.run.pk for watch in group],
                        [watch.run.fence for watch in group],
                        settings.CAPSTAN_LEASE_SECONDS,
                    ],
                )


def _pause_s() -> float:
    return min(FLAGS_EVERY_S, settings.CAPSTAN_LEASE_SECONDS / 6)


def _by_model(watches: Sequence[Watch]) -> dict[type[LeasedRun], list[Watch]]:
    groups: dict[type[LeasedRun], list[Watch]] = defaultdict(list)
    for watch in watches:
        groups[watch.run.model].append(watch)
    return groups


def _own_connection() -> BaseDatabaseWrapper:
    own: Any = connections["default"].copy()
    own.settings_dict["OPTIONS"].pop("pool", None)
    return own  # type: ignore[no-any-return]


_keeper = _Keeper()


@contextmanager
def watching(run: RunRef, *, cancel: CancelToken, deadline_s: float) -> Iterator[Watch]:
    """Keep the lease of `run` while the block runs.

    Args:
        cancel: cancelled with `cancel`, `lease_lost`, `deadline` or `shutdown` when the block should end.
        deadline_s: how long the first unit may take, seconds; `Watch.extend` for each later one.
    """
    watch = Watch(run=run, cancel=cancel, deadline=time.monotonic() + deadline_s)
    _keeper.add(watch)
    try:
        yield watch
    finally:
        _keeper.remove(watch)


def shut_down() -> int:
    """This process stops: cancel the model calls of its runs; how many there were. Each run hands itself back."""
    return _keeper.cancel_all("shutdown")


def watched() -> int:
    """How many runs this process holds now."""
    return _keeper.count()
