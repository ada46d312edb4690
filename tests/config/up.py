"""`manage.py up` as a process of its own, on a temporary state folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from config.embedded import remove_sockets, socket_folder
from config.state import StateFolder
from llm.testing.loopback import OpenAILoopback
from tests.settings import SESSION
from tests.support.processes import Running
from tests.support.waiting import wait_until

GREETING = r"Capstan runs at (http://[\d.:]+/)"
START_S = 60.0
SERVERS = ("DATABASE_URL", "REDIS_URL", "PORT")


def fresh_state() -> Path:
    """The path of a state folder that nobody used, where the servers' account can reach it."""
    folder = Path(tempfile.mkdtemp(dir=os.environ[SESSION]))
    if os.geteuid() == 0:
        folder.chmod(0o711)
    return folder.resolve() / "state"


def environment(state: Path, **extra: str) -> dict[str, str]:
    """The session's variables without its servers."""
    inherited = {name: value for name, value in os.environ.items() if name not in SERVERS}
    return {**inherited, "CAPSTAN_STATE_DIR": str(state), "DJANGO_SETTINGS_MODULE": "config.settings", **extra}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(state: Path, port: int, *argv: str, **extra: str) -> Running:
    """Start it; it may still be refused."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--stop-with-parent", "--port", str(port), *argv],
        env=environment(state, PYTHONUNBUFFERED="1", **extra),
        cwd=settings.BASE_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Running("up", process)


@contextmanager
def running(state: Path, **extra: str) -> Iterator[tuple[Running, int]]:
    """A stack that serves, and its port; nothing of it outlives the `with`."""
    port = free_port()
    with OpenAILoopback() as model:
        up = start(state, port, **model.environment(), **extra)
        try:
            up.wait_for_line(GREETING, START_S)
            yield up, port
        finally:
            up.close()
            wait_for_end(state)
            remove_sockets(StateFolder(state))


def wait_for(state: Path, fits: Callable[[list[str]], object], timeout: float = 10.0, *, what: str) -> None:
    """Wait until the commands of the processes on the state folder fit; asking reads all of /proc."""
    wait_until(lambda: fits(list(processes_of(state).values())), timeout, poll_s=0.1, what=what)


def wait_for_end(state: Path, timeout: float = 10.0) -> None:
    """Wait until no process is left on the state folder."""
    wait_for(state, lambda commands: not commands, timeout, what=f"an end of what runs on {state}")


def processes_of(state: Path) -> dict[int, str]:
    """Pid and command of every process on the state folder: its environment, or arguments, name it or its sockets."""
    needles, found = (os.fsencode(state), os.fsencode(socket_folder(StateFolder(state)))), {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            known = command + (folder / "environ").read_bytes()
        except OSError:  # it ended, or is somebody else's
            continue
        if command and any(needle in known for needle in needles):
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found
