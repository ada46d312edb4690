"""Threads for calls that are waited for with a deadline: reads side by side, external calls (design § 5.3).

They are daemons: one that hangs past its deadline is left behind and never keeps the process from ending.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

IDLE_SECONDS = 30.0

_Work = tuple["Future[object]", Callable[[], object]]


class DaemonThreads:
    """Runs each piece of work at once: in a thread that waits for work, else in a new one."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads do not survive a fork

    def _begin(self) -> None:
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Start `work` with the caller's context variables; its future holds what it returns or raises."""
        future: Future[T] = Future()
        context = copy_context()
        with self._lock:
            self._work.put((future, lambda: context.run(work)))  # type: ignore[arg-type]
            if self._idle > 0:
                self._idle -= 1
                return future
        threading.Thread(target=self._serve, name="tool-call", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            try:
                future, work = self._work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if not self._work.empty():
                        continue
                    self._idle -= 1
                return
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as exc:  # noqa: BLE001  # the future carries it to whoever waits
                    future.set_exception(exc)
            del future, work
            with self._lock:
                self._idle += 1


tool_threads = DaemonThreads()
