"""A small HTTP/1.1 server on 127.0.0.1, for tests that need to see what a client does to its connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal

Stage = Literal["before_headers", "before_body", "mid_body", "done"]


@dataclass(slots=True)
class Received:
    """One request as it came in, and how its exchange went.

    Attributes:
        method, path, headers: as sent; header names in lower case.
        raw: the body's bytes.
        stage: how far the answer had got.
        closed_by_client: set when the client closed its connection before the answer was whole.
    """

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    stage: Stage = "before_headers"
    closed_by_client: threading.Event = field(default_factory=threading.Event)

    @property
    def body(self) -> Any:
        """The body read as JSON; None when it is empty."""
        return json.loads(self.raw) if self.raw else None


class ClientGone(Exception):
    """The client closed its connection while the answer was being made."""


class Exchange:
    """One request being answered: `start`, `send` as often as needed, `finish`; or `answer` at once, or `drop`."""

    def __init__(self, request: Received, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        self.request = request
        self.gone = gone
        self._writer = writer
        self.dropped = False

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer with a content-length."""
        self._head(status, {**(headers or {}), "content-length": str(len(body))})
        self._writer.write(body)
        await self._flush()
        self.request.stage = "done"

    async def answer_json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        await self.answer(status, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})})

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a chunked answer."""
        self._head(status, {**headers, "transfer-encoding": "chunked"})
        self.request.stage = "before_body"
        await self._flush()

    async def send(self, data: bytes) -> None:
        """Send one chunk; raises `ClientGone` when nobody is there to take it."""
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._flush()
        self.request.stage = "mid_body"

    async def finish(self) -> None:
        """End a chunked answer cleanly."""
        self._writer.write(b"0\r\n\r\n")
        await self._flush()
        self.request.stage = "done"

    def drop(self) -> None:
        """Reset the connection."""
        self.dropped = True
        self._writer.transport.abort()

    async def hold(self, awaitable: Awaitable[object]) -> None:
        """Wait for `awaitable`, or raise `ClientGone` as soon as the client leaves."""
        waiting = asyncio.ensure_future(awaitable)
        leaving = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if self.gone.is_set() and not waiting.done():
                raise ClientGone
            await waiting
        finally:
            for task in (waiting, leaving):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Status"
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1"))

    async def _flush(self) -> None:
        if self.gone.is_set():
            raise ClientGone
        try:
            await self._writer.drain()
        except ConnectionError as exc:
            raise ClientGone from exc


Handler = Callable[[Exchange], Awaitable[None]]


class HTTPLoopback:
    """Serves `handler` on 127.0.0.1 from a thread of its own; a context manager.

    Attributes:
        requests: what came in, in order.
        url: `http://127.0.0.1:<port>`, once started.
    """

    def __init__(self, handler: Handler) -> None:
        self.requests: list[Received] = []
        self.url = ""
        self._handler = handler
        self._arrived = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="loopback-http", daemon=True)

    def __enter__(self) -> HTTPLoopback:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None and self._failure is not None:
            raise self._failure

    def start(self) -> None:
        """Bind a free port and serve."""
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._track, "127.0.0.1", 0, backlog=1024), self._loop
        ).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """End every exchange and the thread."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def wait_for_request(self, number: int, timeout: float = 10.0) -> Received:
        """The request of that number, from 1, waiting for it at most `timeout` seconds."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= number, timeout):
                raise TimeoutError(f"request {number} did not come within {timeout} s; {len(self.requests)} did")
            return self.requests[number - 1]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _track(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except Exception as exc:  # noqa: BLE001  a handler's bug must fail the test, not hang its client
            self._failure = self._failure or exc
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pending = b""
        while True:
            received, pending = await _read_request(reader, pending)
            if received is None:
                return
            gone = asyncio.Event()
            watch = asyncio.ensure_future(_watch(reader, gone))
            exchange = Exchange(received, writer, gone)
            with self._arrived:
                self.requests.append(received)
                self._arrived.notify_all()
            try:
                await self._handler(exchange)
            except ClientGone:
                pass
            finally:
                if gone.is_set() and received.stage != "done":
                    received.closed_by_client.set()
                if not watch.done():
                    watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    pending = await watch
            if gone.is_set() or exchange.dropped or received.stage != "done":
                return


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> bytes:
    """The next bytes of the connection; sets `gone` when there are none to come."""
    try:
        data = await reader.read(65536)
    except ConnectionError:
        data = b""
    if not data:
        gone.set()
    return data


async def _read_request(reader: asyncio.StreamReader, pending: bytes) -> tuple[Received | None, bytes]:
    data = pending
    while b"\r\n\r\n" not in data:
        more = await reader.read(65536)
        if not more:
            return None, b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _version = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body, rest = await _read_chunked(reader, rest)
        return Received(method, path, headers, body), rest
    length = int(headers.get("content-length", "0"))
    if len(rest) < length:
        rest += await reader.readexactly(length - len(rest))
    return Received(method, path, headers, rest[:length]), rest[length:]


async def _read_chunked(reader: asyncio.StreamReader, data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        while b"\r\n" not in data:
            data += await _more(reader)
        size_line, _, data = data.partition(b"\r\n")
        size = int(size_line.split(b";")[0], 16)
        while len(data) < size + 2:
            data += await _more(reader)
        body, data = body + data[:size], data[size + 2 :]
        if size == 0:
            return body, data


async def _more(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(65536)
    if not data:
        raise ConnectionError("the client closed its connection inside a request")
    return data
