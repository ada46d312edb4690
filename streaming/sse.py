"""The raw ASGI door in front of Django: it serves the two stream URLs and passes everything else on (CAP-100).

Through Django's own handler each open stream would hold a thread and a database connection. Here an idle stream holds
neither.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing, suppress
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from observability.correlation import accept, correlated
from streaming.errors import HostRefused, MethodRefused, StreamRefused
from streaming.hub import Hub
from streaming.ports import StreamGate
from streaming.reader import DatabaseDoor, StreamReader
from streaming.settings import StreamSettings
from streaming.types import StreamRequest

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

UUID_PATTERN: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PATHS: Final = (
    ("conversation", re.compile(rf"/api/conversations/({UUID_PATTERN})/stream/")),
    ("plan", re.compile(r"/api/plans/(\d{1,18})/stream/")),
)
RETRY_MS: Final = 1000
STOP_S: Final = 0.5


class StreamApp:
    """Serves streams, and hands every other request to `inner`.

    Args:
        inner: Django's ASGI application.
        gate: who may read which stream.
        options: from Django's settings when left out.
    """

    def __init__(self, inner: ASGIApp, *, gate: StreamGate, options: StreamSettings | None = None) -> None:
        self._inner, self._gate = inner, gate
        self._options = options or StreamSettings.from_django()
        self._hub: Hub | None = None
        self._door: DatabaseDoor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = _target(scope["path"]) if scope["type"] == "http" else None
        if target is None:
            await self._inner(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with correlated(accept(headers.get(settings.CORRELATION_ID_HEADER.lower()))) as correlation_id:
            await self._serve(scope, receive, send, target, headers, correlation_id)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        target: tuple[str, str],
        headers: dict[str, str],
        correlation_id: str,
    ) -> None:
        echo = (settings.CORRELATION_ID_HEADER.lower().encode(), correlation_id.encode())
        try:
            check_host(headers.get("host", ""))
            if scope["method"] != "GET":
                raise MethodRefused
            reader = await self._admit(_request_of(target, headers), _last_id(scope, headers))
        except StreamRefused as exc:
            await _refuse(send, exc, echo)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, echo]})
        sending = asyncio.create_task(self._send_all(reader, send))
        others = {asyncio.create_task(_until_gone(receive)), asyncio.create_task(self._stopping.wait())}
        try:
            await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)
        if not sending.cancelled():
            sending.result()
        elif self._stopping.is_set():
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(STOP_S):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    def stop(self) -> None:
        """End all streams: their clients come back, to another process or a new one. Any thread may call it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def _admit(self, request: StreamRequest, last_id: str) -> StreamReader:
        if self._hub is None or self._door is None:  # both belong to the running event loop
            self._hub, self._door = Hub(), DatabaseDoor(self._options.database_slots)
            self._loop = asyncio.get_running_loop()
        grant = await self._door.visit(lambda: self._gate(request))
        return StreamReader(
            request,
            grant=grant,
            last_id=last_id,
            gate=self._gate,
            hub=self._hub,
            door=self._door,
            options=self._options,
        )

    async def _send_all(self, reader: StreamReader, send: Send) -> None:
        async def body(chunk: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(self._options.send_timeout_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": more})

        try:
            await body(f"retry: {RETRY_MS}\n\n".encode())
            async with aclosing(reader.events()) as events:
                async for chunk in events:
                    await body(chunk)
        except StreamRefused as exc:
            logger.warning("stream %s ends: %s", reader.grant.stream_id, exc)
        except TimeoutError:
            logger.info("stream %s ends: its client takes nothing", reader.grant.stream_id)
            return
        with suppress(TimeoutError, OSError):
            await body(b"", more=False)


STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


def check_host(host: str) -> None:
    """Hold the Host header against ALLOWED_HOSTS, as Django does.

    Raises:
        HostRefused: it is not one of ours.
    """
    allowed = settings.ALLOWED_HOSTS or ([".localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    domain, _port = split_domain_port(host)
    if not domain or not validate_host(domain, allowed):
        raise HostRefused


def _target(path: str) -> tuple[str, str] | None:
    for kind, pattern in PATHS:
        if match := pattern.fullmatch(path):
            return kind, match[1]
    return None


def _request_of(target: tuple[str, str], headers: dict[str, str]) -> StreamRequest:
    cookies = SimpleCookie()
    with suppress(CookieError):
        cookies.load(headers.get("cookie", ""))
    session = cookies.get(settings.SESSION_COOKIE_NAME)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return StreamRequest(
        kind=target[0],
        key=target[1],
        session_key=session.value if session else "",
        token=token.strip() if scheme.lower() == "token" else "",
    )


def _last_id(scope: Scope, headers: dict[str, str]) -> str:
    """Where the client stands. The header is newer than the address that the browser opens again."""
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return headers.get("last-event-id", "") or query.get("after", [""])[0]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, exc: StreamRefused, echo: tuple[bytes, bytes]) -> None:
    message = (exc.__doc__ or "").strip()
    body = json.dumps({"error": {"code": exc.code, "message": message, "details": exc.details}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), echo]
    await send({"type": "http.response.start", "status": exc.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
