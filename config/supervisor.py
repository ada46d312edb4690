"""One manager for everything that `make run` starts: it restarts what ends, and ends everything when it stops.

A single thread waits in one selector: on the children's output, on signals (through a socket pair) and on the next
restart. The kernel ends the children when the manager is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from config.processes import Program, spawn

FIRST_PAUSE_S = 0.5  # before a child that ended is started again, doubling
LONGEST_PAUSE_S = 30.0
SERVER_RESTARTS = 5  # in a row without a proven run: what everything else needs does not come back
PROVEN_S = 30.0  # a child that ran this long is forgiven its earlier ends
CHILDREN_STOP_S = 3.4  # workers hand back for 3 s; what still runs is killed and recovered as a crash (design § 5)
STOP_S = 4.6  # for all; the servers get what the children left of it, to write their last page,
SERVERS_STOP_S = 2.5  # and so long at least: on a busy machine a checkpoint takes longer than the children left
LONGEST_LINE = 1 << 20  # bytes; a longer one is cut in pieces
STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked us to stop while we were starting."""


class ServerLost(Exception):
    """A server ended again after each of its restarts; everything that needs it is of no use."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} ended {SERVER_RESTARTS + 1} times in a row")


@dataclass(slots=True, eq=False)
class Child:
    """A program and its present process."""

    program: Program
    server: bool  # stopped after everything that uses it
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float | None = None
    pause_s: float = FIRST_PAUSE_S
    ends: int = 0  # in a row, none of them after a proven run
    ready: bool = False
    silent: bool = False  # told to stop before it was ready: what it prints is how an import looks when it is cut off
    unfinished_line: bytes = field(default=b"", repr=False)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Starts programs, restarts them with back-off, prefixes their output, and stops them.

    Args:
        keep: descriptors that every child inherits (the state folder's lock).
        output: where the prefixed lines go.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, keep: Sequence[int], output: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.children: list[Child] = []
        self.stop_requested = False
        self._keep = tuple(keep)
        self._output = output or sys.stdout
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._starting = True

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Handle signals for the length of the `with`; leaving it stops every child."""
        receiving, waking = socket.socketpair()
        receiving.setblocking(False)
        waking.setblocking(False)
        self._selector.register(receiving, selectors.EVENT_READ, None)
        earlier_fd = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        earlier = {sig: signal.signal(sig, self._stop_on) for sig in STOPPING_SIGNALS}
        earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)  # only to be woken
        try:
            yield
        finally:
            self._starting = False
            self._stop_all()
            signal.set_wakeup_fd(earlier_fd)
            for sig, handler in earlier.items():
                signal.signal(sig, handler)
            self._selector.close()
            receiving.close()
            waking.close()

    def start(self, program: Program, *, server: bool = False) -> Child:
        """Start a program and keep it running from now on."""
        child = Child(program=program, server=server)
        self.children.append(child)
        self._spawn(child)
        return child

    def watch(self, *, until: Callable[[], bool] = lambda: False, poll_s: float | None = None) -> bool:
        """Keep the children running until a signal asks to stop.

        Args:
            until: ends the watch as well, asked at each event and every `poll_s` seconds.

        Returns:
            Whether `until` ended it; False when a signal did.

        Raises:
            ServerLost: a server does not come back.
        """
        self._starting = False
        while not self.stop_requested:
            if until():
                return True
            self._restart_due()
            self._wait(self._next_restart_in(poll_s))
            self._reap()
        return False

    def say(self, line: str, *, name: str = "capstan") -> None:
        """Print one line with its prefix; a closed terminal must not stop the stack."""
        with contextlib.suppress(OSError, ValueError):
            self._output.write(f"{name:<8} | {line}\n")
            self._output.flush()

    def flush(self) -> None:
        """Print what the children have written so far."""
        self._wait(0)

    def _stop_on(self, number: int, _frame: FrameType | None) -> None:
        self.stop_requested = True
        if self._starting:
            self._starting = False
            raise Stopped

    def _spawn(self, child: Child) -> None:
        child.restart_at = None
        child.ready = False
        child.started_at = self._clock()
        child.process = spawn(child.program, output=subprocess.PIPE, keep=self._keep)
        pipe = child.process.stdout
        if pipe is None:
            raise RuntimeError("a child without its pipe")
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, child)

    def _next_restart_in(self, poll_s: float | None) -> float | None:
        waits = [child.restart_at - self._clock() for child in self.children if child.restart_at is not None]
        if poll_s is not None:
            waits.append(poll_s)
        return max(0.0, min(waits)) if waits else None

    def _restart_due(self) -> None:
        for child in self.children:
            if child.restart_at is not None and child.restart_at <= self._clock():
                try:
                    self._spawn(child)
                except OSError as exc:  # its program or folder is gone
                    self._ended(child, f"cannot be started ({exc.strerror})")

    def _reap(self) -> None:
        for child in self.children:
            if child.process is None or child.process.poll() is None or child.restart_at is not None:
                continue
            if self._clock() - child.started_at >= PROVEN_S:
                child.pause_s, child.ends = FIRST_PAUSE_S, 0
            _end_group(child.process)
            self._ended(child, f"ended ({child.process.returncode})")

    def _ended(self, child: Child, how: str) -> None:
        child.ends += 1
        if child.server and child.ends > SERVER_RESTARTS:
            self.say(f"{child.program.name} {how}")
            raise ServerLost(child.program.name)
        child.restart_at = self._clock() + child.pause_s
        self.say(f"{child.program.name} {how}; starts again in {child.pause_s:g} s")
        child.pause_s = min(child.pause_s * 2, LONGEST_PAUSE_S)

    def _wait(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    while key.fileobj.recv(4096):  # type: ignore[union-attr]
                        pass
            else:
                self._relay(key.data, key.fileobj)  # type: ignore[arg-type]

    def _relay(self, child: Child, pipe: IO[bytes]) -> None:
        try:
            data = os.read(pipe.fileno(), 65_536)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(pipe)
            pipe.close()
        *lines, child.unfinished_line = (child.unfinished_line + data).split(b"\n")
        if child.unfinished_line and (not data or len(child.unfinished_line) > LONGEST_LINE):
            lines, child.unfinished_line = [*lines, child.unfinished_line], b""
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if child.program.ready_line and text == child.program.ready_line:
                child.ready = True
            elif not child.silent and not any(part in text for part in child.program.not_shown):
                self.say(text, name=child.program.name)

    def _stop_all(self) -> None:
        for child in self.children:
            child.restart_at = None
        started = self._clock()
        for servers, limit in ((False, CHILDREN_STOP_S), (True, STOP_S)):
            group = [child for child in self.children if child.server is servers]
            for child in group:
                if child.process is not None:
                    new = started - child.started_at < PROVEN_S  # one that was restarted long ago is known to run
                    child.silent = bool(child.program.ready_line) and not child.ready and new and child.running
                    child.process.send_signal(child.program.stop_signal)  # no effect on one that ended
            deadline = max(started + limit, self._clock() + SERVERS_STOP_S) if servers else started + limit
            while any(child.running for child in group) and self._clock() < deadline:
                self._wait(min(0.1, max(0.0, deadline - self._clock())))
            for child in group:
                self._kill(child)
        self._wait(0)
        for child in self.children:
            if child.process is not None and child.process.stdout is not None:
                child.process.stdout.close()

    def _kill(self, child: Child) -> None:
        if child.process is None:
            return
        if child.running:
            self.say(f"{child.program.name} did not stop in time and is killed")
        _end_group(child.process)
        child.process.wait()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what the process left in its session, itself included."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
