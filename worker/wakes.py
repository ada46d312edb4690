"""Wake-ups of readers, gathered: a plan of many small steps tells its readers twenty times a second, not each time."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

from streaming.signals import wake

GATHER_S = 0.05


class _Waker:
    """One daemon thread a process; it sleeps while nothing happens."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._streams: set[UUID] = set()
        self._thread: threading.Thread | None = None

    def submit(self, stream_id: UUID) -> None:
        with self._changed:
            if stream_id in self._streams:
                return
            self._streams.add(stream_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._streams))
            time.sleep(GATHER_S)
            with self._changed:
                streams, self._streams = self._streams, set()
            for stream_id in streams:
                wake(stream_id)


_waker = _Waker()


def wake_soon(stream_id: UUID) -> None:
    """Tell the readers of a stream, within `GATHER_S`, that new rows are there. Never waits."""
    _waker.submit(stream_id)


def _after_fork() -> None:
    global _waker  # a child has no threads of its parent
    _waker = _Waker()


os.register_at_fork(after_in_child=_after_fork)
