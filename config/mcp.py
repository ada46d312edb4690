"""`/mcp`: MCP over streamable HTTP, in front of Django; each request carries its user's token (design § 8).

Stateless: any web process answers any request. Host and Origin are checked before anything else.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils import timezone
from rest_framework.authtoken.models import Token

from config.callers import chosen_workspace
from factory.executors import build_executor
from factory.identities import PLANNER
from prompt.types import Mode
from streaming.sse import ASGIApp
from workspaces.models import User, Workspace

PATH = "/mcp"
CALLER = "capstan.caller"
MODES: tuple[Mode, ...] = ("conversation", "workflow")


class McpMount:
    """Answers `/mcp` and hands everything else on.

    A client says `?workspace=slug` where its user belongs to several, and `?mode=conversation` for the tools of a chat.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") != PATH:
            await self.inner(scope, receive, send)
            return
        from tools.mcp_server import Caller, in_thread  # the SDK is slow to load

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not _ours(headers):
            await _refuse(send, 403, "host_or_origin", "this host or origin is not allowed")
            return
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        mode = query.get("mode", "workflow")
        if mode not in MODES:
            await _refuse(send, 400, "mode", "mode is conversation or workflow")
            return
        user = await in_thread(lambda: _user(headers.get("authorization", "")))
        if user is None:
            await _refuse(send, 401, "not_signed_in", "send Authorization: Bearer <token>")
            return
        workspace = await in_thread(lambda: chosen_workspace(user, query.get("workspace", "")))
        if workspace is None:
            await _refuse(send, 400, "workspace", "name one of your workspaces with ?workspace=slug")
            return
        scope = {**scope, CALLER: Caller(user=user, workspace=workspace), "capstan.mode": mode}
        await _serve(scope, receive, send)


async def _serve(scope: Any, receive: Any, send: Any) -> None:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    manager = StreamableHTTPSessionManager(_server(scope["capstan.mode"]), json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(scope, receive, send)


@cache
def _server(mode: Mode) -> Any:
    from tools.mcp_server import build_server

    def executor_of(workspace: Workspace) -> Any:
        return build_executor(PLANNER, mode=mode, workspace=workspace)

    def caller_of(request: Any) -> Any:
        return request.request.scope[CALLER]

    return build_server(caller_of=caller_of, executor_of=executor_of, clock=timezone.now)


def _user(authorization: str) -> User | None:
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() not in ("bearer", "token") or not key:
        return None
    token = Token.objects.select_related("user").filter(key=key.strip(), user__is_active=True).first()
    return token.user if token is not None else None


def _ours(headers: dict[str, str]) -> bool:
    host = headers.get("host", "")
    allowed = settings.ALLOWED_HOSTS or ([".localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    domain, _port = split_domain_port(host)
    if not domain or not validate_host(domain, allowed):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    return origin in settings.CSRF_TRUSTED_ORIGINS or urlsplit(origin).netloc == host


async def _refuse(send: Any, status: int, code: str, message: str) -> None:
    body = json.dumps({"error": {"code": code, "message": message, "details": {}}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
