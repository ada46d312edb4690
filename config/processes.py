"""Programs that run as children of ours and never outlive us."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # loaded before any fork


@dataclass(frozen=True, slots=True)
class Account:
    """The user and group that a program runs as."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One child: what to run, and how it is told to stop."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)  # carries keys
    cwd: Path
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL  # what the kernel sends when the parent dies
    account: Account | None = None  # None: ours
    not_shown: tuple[str, ...] = ()  # lines of its output that contain one of these are left out
    ready_line: str = ""  # the line by which it says that it is ready; it is not shown


def spawn(program: Program, *, output: int | IO[Any], keep: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own, so that Ctrl-C reaches only us.

    Call it from the main thread: the kernel's parent-death signal follows the thread that forked.

    Args:
        output: where standard output and error go.
        keep: descriptors that the child inherits.
    """
    identity: dict[str, Any] = {}
    if program.account is not None:
        identity = {"user": program.account.uid, "group": program.account.gid, "extra_groups": []}
    return subprocess.Popen(  # noqa: S603  argv is ours
        program.argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(program.environment),
        cwd=program.cwd,
        start_new_session=True,
        pass_fds=tuple(keep),
        preexec_fn=_die_with_parent(program.death_signal),  # one thread at this point, so safe
        **identity,
    )


def stop_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent ends (Linux only)."""
    parent = os.getppid()
    _signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _signal_on_parent_death(death_signal: signal.Signals) -> None:
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)


def _die_with_parent(death_signal: signal.Signals) -> Callable[[], None]:
    parent = os.getpid()

    def before_exec() -> None:
        _signal_on_parent_death(death_signal)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return before_exec
