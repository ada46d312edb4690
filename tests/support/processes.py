"""Real processes of Capstan for tests: started on the test's database, awaited by what they print, always ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from django.conf import settings
from django.db import connection

from config.processes import Program, spawn

READY_S = 30.0  # to import and connect, on a busy machine
END_S = 10.0


class Running:
    """A started process and the lines that it printed."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self.lines: list[str] = []
        self._printed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """All it printed so far."""
        with self._printed:
            return "\n".join(self.lines)

    def wait_for_line(self, pattern: str, timeout: float = READY_S, *, after: int = 0) -> re.Match[str]:
        """The first line, from number `after` on, in which `pattern` is found; fails when the process ends before."""
        found: list[re.Match[str]] = []
        seen = after

        def arrived() -> bool:
            nonlocal seen
            for line in self.lines[seen:]:
                seen += 1
                if match := re.search(pattern, line):
                    found.append(match)
                    return True
            return self._ended

        with self._printed:
            in_time = self._printed.wait_for(arrived, timeout)
            text = "\n".join(self.lines)
        assert found, f"{self.name} {'ended' if in_time else 'did not print'} without {pattern!r}:\n{text}"
        return found[0]

    def kill(self) -> None:
        """SIGKILL to it and whatever it started, and wait for its end."""
        self._signal_group(signal.SIGKILL)
        self.wait()

    def terminate(self, timeout: float = END_S) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        return self.wait(timeout)

    def wait(self, timeout: float = END_S) -> int:
        """Its exit code, once it has ended and its output is read."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def close(self) -> None:
        """End it however it stands."""
        self._signal_group(signal.SIGKILL)
        self.process.wait()
        self._reader.join(END_S)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                with self._printed:
                    self.lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._printed.notify_all()
        with self._printed:
            self._ended = True
            self._printed.notify_all()


class Processes:
    """Starts processes on the present test's database and Redis; leaving the `with` ends them all."""

    def __init__(self) -> None:
        self.running: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self.running):
            process.close()
        self.running.clear()

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Running:
        """Start `python -m …` or a `manage.py` command line as a process.

        Args:
            argv: what follows the interpreter.
            environment: on top of `process_environment()`.
        """
        program = Program(
            name=name,
            argv=(sys.executable, *argv),
            environment=process_environment(environment or {}),
            cwd=Path(settings.BASE_DIR),
        )
        started = Running(name, spawn(program, output=subprocess.PIPE))
        self.running.append(started)
        return started

    def worker(
        self,
        queues: str = "turns,plans",
        *,
        pool: str = "threads",
        concurrency: int = 8,
        environment: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Running:
        """A Celery worker that has connected to the broker and takes messages."""
        name = name or f"{queues.replace(',', '-')}-{len(self.running)}"
        argv = ("-m", "celery", "-A", "config", "--quiet", "worker", "-Q", queues, "-P", pool, "-c", str(concurrency))
        alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        pooled = {"DATABASE_POOL_SIZE": str(concurrency + 2) if pool == "threads" else "0"}
        process = self.start(name, (*argv, "-n", f"{name}@%h", "-l", "INFO", *alone), {**pooled, **(environment or {})})
        process.wait_for_line(r"@\S+ ready\.")
        return process

    def beat(self, *, environment: Mapping[str, str] | None = None) -> Running:
        """Celery's beat, with its schedule in memory."""
        argv = ("-m", "celery", "-A", "config", "--quiet", "beat", "-S", "celery.beat:Scheduler", "-l", "INFO")
        process = self.start("beat", argv, environment)
        process.wait_for_line(r"beat: Starting")
        return process

    def web(self, *, environment: Mapping[str, str] | None = None) -> tuple[Running, str]:
        """A web process that listens, and its base URL; the kernel picks the port."""
        argv = ("-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1", "--port", "0")
        process = self.start("web", (*argv, "--timeout-graceful-shutdown", "2"), environment)
        match = process.wait_for_line(r"Uvicorn running on (http://[\d.]+:\d+)")
        return process, match[1]

    def manage(self, *argv: str, environment: Mapping[str, str] | None = None) -> Running:
        """A `manage.py` command."""
        return self.start(argv[0], ("manage.py", *argv), environment)


def process_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The session's variables, pointed at the test's database.

    Args:
        extra: more variables, such as a short CAPSTAN_LEASE_SECONDS or `OpenAILoopback.environment()`.
    """
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": database_url(),
        "REDIS_URL": settings.REDIS_URL,
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "default",
        **(extra or {}),
    }


def database_url() -> str:
    """The present test's database as a URL."""
    parts = connection.settings_dict
    account = quote(parts["USER"], safe="")
    if parts["PASSWORD"]:
        account += ":" + quote(parts["PASSWORD"], safe="")
    port = f":{parts['PORT']}" if parts["PORT"] else ""
    return f"postgres://{account}@{quote(parts['HOST'], safe='')}{port}/{quote(parts['NAME'], safe='')}"
