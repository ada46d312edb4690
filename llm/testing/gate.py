"""A gate that a test opens: an answer waits at it, in a thread or in an event loop, without polling."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Gate:
    """Holds answers back until `open()`.

    Attributes:
        reached: set when the first answer waits at the gate; a test waits on it before it kills or cancels.
    """

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._lock = threading.Lock()
        self._open = False
        self._waiters: list[Callable[[], object]] = []

    @property
    def is_open(self) -> bool:
        return self._open

    def open(self) -> None:
        """Let everything through, now and later."""
        with self._lock:
            self._open = True
            waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def on_open(self, wake: Callable[[], object]) -> None:
        """Run `wake` when the gate opens, or now if it is open; marks the gate as reached."""
        self.reached.set()
        with self._lock:
            if not self._open:
                self._waiters.append(wake)
                return
        wake()
