"""`/health/live` and `/health/ready`, answered before sessions, hosts and redirects have a say.

Database, broker and model are reported apart. Only the database down is 503: without the broker messages are still
taken and answered, without the model they wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import kombu
import kombu.exceptions
import psycopg
import redis
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse

from config.celery import app
from factory.health import llm_status

PROBE_LIMIT_S = 2
logger = logging.getLogger(__name__)


class HealthMiddleware:
    """Answers the two probes; everything else goes on."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/health/live":
            return JsonResponse({"status": "ok"})
        if request.path == "/health/ready":
            return readiness()
        return self.get_response(request)


def readiness() -> JsonResponse:
    """Each part's state; 503 when the database is down."""
    parts = {"database": database_status(), "broker": broker_status(), "llm": llm_status()}
    down = [name for name, part in parts.items() if part["status"] == "down"]
    status = "down" if "database" in down else "degraded" if down else "ok"
    return JsonResponse({"status": status, **parts}, status=503 if "database" in down else 200)


def database_status() -> dict[str, Any]:
    """Whether PostgreSQL answers, asked on a connection of its own: an exhausted pool is no dead database."""
    parameters = {**connection.get_connection_params(), "connect_timeout": PROBE_LIMIT_S}
    try:
        with psycopg.connect(**parameters) as probe:
            probe.execute("SELECT 1")
    except psycopg.Error as exc:
        return _down("database", exc)
    return {"status": "ok"}


def broker_status() -> dict[str, Any]:
    """Whether the broker that carries Celery's messages answers."""
    known: Any = app.connection_for_write()
    limits = {"socket_timeout": PROBE_LIMIT_S, "socket_connect_timeout": PROBE_LIMIT_S}
    try:  # on a connection of its own: a worker's may wait long for an answer, a probe may not
        with kombu.Connection(
            known.as_uri(include_password=True), transport_options={**known.transport_options, **limits}
        ) as broker:
            broker.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=PROBE_LIMIT_S)
    except (OSError, kombu.exceptions.OperationalError, redis.RedisError) as exc:
        return _down("broker", exc)
    return {"status": "ok"}


def _down(part: str, exc: BaseException) -> dict[str, Any]:
    logger.warning("%s is down: %s", part, exc)
    return {"status": "down", "error": type(exc).__name__}  # its text may hold hosts and names
