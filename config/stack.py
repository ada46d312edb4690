"""Everything that `manage.py up` runs, in the order in which it starts."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import redis
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError, connections

from config import first_start, static_files
from config.celery import READY_LINE
from config.embedded import Layout, Postgres, Valkey, remove_sockets, servers_of, wait_for
from config.errors import StartRefused
from config.processes import Program
from config.state import Servers, StateFolder
from config.supervisor import ServerLost, Supervisor

HOST = "127.0.0.1"
WEB_POOL, WORKER_POOL = 20, 32  # database connections at most, opened on demand
TURN_SLOTS = 32  # runs at once in the threads worker (design § 6)
LIVE_LIMIT_S = 60.0
LIVE_POLL_S = 0.05
REDIS_LIMIT_S = 5.0
READY = "ready: d5f0c3"  # no log line of anybody's
ROOT_WORKER_WARNING = "ignore:You're running the worker with superuser privileges"  # on four lines, at every start


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One start of all of it.

    Args:
        state: the state folder; one stack at a time runs on it.
        base_dir: the project's folder.
        port: where the web process listens, on the loopback interface.
        database_url, redis_url: real servers; empty for the embedded ones.
        static_root: where the static files are gathered; None when they are found in place (DEBUG).
    """

    state: StateFolder
    base_dir: Path
    port: int
    database_url: str
    redis_url: str
    static_root: Path | None

    def run(self) -> None:
        """Start everything and stay until a signal stops it.

        Raises:
            StartRefused: it cannot start; whatever had started is stopped again.
        """
        self.state.create()
        descriptor = self.state.lock()
        try:
            supervisor = Supervisor(keep=(descriptor,))
            with contextlib.ExitStack() as after, supervisor.running():
                try:
                    self._start(supervisor, after)
                    supervisor.watch()
                except StartRefused:
                    supervisor.flush()
                    raise
                except ServerLost as exc:
                    supervisor.flush()
                    raise StartRefused(
                        f"{exc}, and nothing works without it: everything is stopped. Its last lines say why; "
                        f"is the state folder {self.state.path} still there, with room on its disk?"
                    ) from exc
                supervisor.say("stopping")
        finally:
            self.state.withdraw()
            os.close(descriptor)

    def _start(self, supervisor: Supervisor, after: contextlib.ExitStack) -> None:
        self._refuse_taken_port()
        if self.redis_url:
            check_redis(self.redis_url)
        servers = self._start_servers(supervisor, after)
        self.state.announce(servers)
        password = self._prepare_database(supervisor)
        if self.static_root is not None:
            static_files.collect(self.static_root)
        self._check_model()
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": servers.database_url,
            "REDIS_URL": servers.redis_url,
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), ROOT_WORKER_WARNING))),
        }
        first, *others = programs(self, environment)
        web = supervisor.start(first)
        self._wait_until_live(supervisor)  # alone: six interpreters that start at once keep a small machine busy
        if supervisor.stop_requested:
            return
        web.ready = True
        workers = [supervisor.start(program) for program in others]
        self._greet(supervisor, password)
        if supervisor.watch(until=lambda: all(child.ready for child in workers)):
            supervisor.say("The workers are ready: questions are answered now.")

    def _refuse_taken_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE:
                    raise StartRefused(
                        f"Port {self.port} is in use: choose another, such as PORT={self.port + 1}."
                    ) from exc
                raise StartRefused(f"Port {self.port} cannot be used ({exc.strerror}): set PORT.") from exc

    def _start_servers(self, supervisor: Supervisor, after: contextlib.ExitStack) -> Servers:
        embedded = servers_of(self.state)
        needed: list[type[Postgres] | type[Valkey]] = []
        if not self.database_url:
            needed.append(Postgres)
        if not self.redis_url:
            needed.append(Valkey)
        if needed:
            layout = Layout.prepare(self.state)
            after.callback(remove_sockets, self.state)
            started = [
                (server, supervisor.start(server.prepare(), server=True)) for server in (k(layout) for k in needed)
            ]
            for server, child in started:
                wait_for(server, alive=lambda child=child: child.running)  # type: ignore[misc]
                child.ready = True
            supervisor.flush()
        return Servers(
            database_url=self.database_url or embedded.database_url, redis_url=self.redis_url or embedded.redis_url
        )

    def _prepare_database(self, supervisor: Supervisor) -> str | None:
        try:
            if first_start.migrate():
                supervisor.say("the database is up to date")
            return first_start.create_first_user(password_file=self.state.password_file)
        except OperationalError as exc:
            variable = "DATABASE_URL: the" if self.database_url else "The"
            raise StartRefused(f"{variable} database does not answer: {str(exc).strip()}") from exc
        finally:
            connections.close_all()

    def _check_model(self) -> None:
        try:
            call_command("check_llm", start=True)
        except CommandError as exc:
            raise StartRefused(str(exc)) from exc

    def _wait_until_live(self, supervisor: Supervisor) -> None:
        deadline = time.monotonic() + LIVE_LIMIT_S
        late: Callable[[], bool] = lambda: time.monotonic() > deadline  # noqa: E731
        supervisor.watch(until=lambda: late() or is_live(self.port), poll_s=LIVE_POLL_S)
        if late():
            raise StartRefused(f"The web process did not answer within {LIVE_LIMIT_S:g} s; its lines above say why.")

    def _greet(self, supervisor: Supervisor, password: str | None) -> None:
        supervisor.say(f"Capstan runs at http://{HOST}:{self.port}/ (its workers are starting)")
        if password is not None:
            supervisor.say(f"Sign in as {first_start.FIRST_USER} with the password {password}")
            supervisor.say(f"It is not shown again; {self.state.password_file} keeps it.")
        elif self.state.password_file.exists():
            supervisor.say(
                f"Sign in as {first_start.FIRST_USER}; {self.state.password_file} keeps the first start's password."
            )
        supervisor.say("Ctrl-C stops all of it.")


def programs(stack: Stack, environment: Mapping[str, str]) -> list[Program]:
    """Web first, the rest once it answers; the three workers of design § 6 and beat."""

    def python(name: str, *argv: str, pool: int = 0) -> Program:
        return Program(
            name=name,
            argv=(sys.executable, "-m", *argv),
            environment={**environment, "DATABASE_POOL_SIZE": str(pool), READY_LINE: READY},
            cwd=stack.base_dir,
            ready_line=READY,
        )

    def worker(name: str, queues: str, *options: str, pool: int = 0) -> Program:
        alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        return python(name, *celery, "worker", "-n", f"{name}@%h", "-Q", queues, *options, *alone, pool=pool)

    celery = ("celery", "-A", "config", "--quiet")
    web = ("uvicorn", "config.asgi:application", "--host", HOST, "--port", str(stack.port))
    return [
        python("web", *web, "--timeout-graceful-shutdown", "2", "--no-server-header", pool=WEB_POOL),
        worker("turns", "turns,plans", "-P", "threads", "-c", str(TURN_SLOTS), "-l", "INFO", pool=WORKER_POOL),
        worker("sweep", "sweep", "-P", "solo", "-l", "WARNING"),
        worker("suspect", "suspect", "-P", "solo", "-l", "WARNING"),
        python("beat", *celery, "beat", "-s", str(stack.state.beat_schedule), "-l", "WARNING"),
    ]


def check_redis(url: str) -> None:
    """Ask the given Redis for a reply. It may go away later; a start without it is a mistake in the URL.

    Raises:
        StartRefused: it does not answer; the reason names the variable.
    """
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=REDIS_LIMIT_S, socket_timeout=REDIS_LIMIT_S)
    except ValueError as exc:
        raise StartRefused(
            "REDIS_URL: it must read redis://user:password@host:port/number, rediss://… or unix:///path?db=number."
        ) from exc
    try:
        client.ping()
    except (redis.RedisError, OSError) as exc:
        raise StartRefused(f"REDIS_URL: the Redis does not answer: {exc}") from exc
    finally:
        client.close()


def is_live(port: int) -> bool:
    """Whether the web process answers `/health/live`."""
    connection = http.client.HTTPConnection(HOST, port, timeout=1)
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
