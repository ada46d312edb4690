"""Celery's settings. Results are ignored and messages may be lost or doubled: rows decide (design § 2, rule 1)."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

CLOCKS_APART_S = 600  # by which hosts' clocks may differ: the sender stamps an end of life, the worker reads it
REDELIVER_AFTER_S = 3600  # longer than any slice of work; the sweep, not the broker, recovers a dead worker's runs
QUEUES = {
    "worker.run_turn": "turns",
    "worker.run_call": "turns",
    "worker.execute_plan": "plans",
    "worker.sweep": "sweep",
}


def celery_settings(*, broker_url: str, result_backend: str, lease_s: float) -> dict[str, Any]:
    """`CELERY_*` for Django's settings.

    Args:
        broker_url, result_backend: as Celery or redis-py spell them.
        lease_s: seconds of a run's lease; the sweep comes every sixth of it (design § 6).
    """
    sweep_s = lease_s / 6
    return {
        "CELERY_BROKER_URL": kombu_url(broker_url),
        "CELERY_RESULT_BACKEND": kombu_url(result_backend),
        "CELERY_TASK_IGNORE_RESULT": True,
        "CELERY_TASK_STORE_ERRORS_EVEN_IF_IGNORED": False,
        "CELERY_TASK_ACKS_LATE": True,
        "CELERY_TASK_DEFAULT_QUEUE": "turns",
        "CELERY_TASK_ROUTES": {name: {"queue": queue} for name, queue in QUEUES.items()},
        "CELERY_TASK_PUBLISH_RETRY": False,  # with the broker down the door answers now, and the sweep sends it later
        "CELERY_TASK_SERIALIZER": "json",
        "CELERY_ACCEPT_CONTENT": ["json"],
        "CELERY_WORKER_PREFETCH_MULTIPLIER": 1,
        "CELERY_WORKER_HIJACK_ROOT_LOGGER": False,
        "CELERY_WORKER_REDIRECT_STDOUTS": False,
        "CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS": False,  # a lost signal stops no work
        "CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP": True,
        "CELERY_BROKER_CONNECTION_MAX_RETRIES": None,  # for ever: Redis may come back at any time
        "CELERY_BROKER_TRANSPORT_OPTIONS": _transport_options(broker_url),
        "CELERY_TIMEZONE": "UTC",
        "CELERY_BEAT_MAX_LOOP_INTERVAL": sweep_s,
        "CELERY_BEAT_SCHEDULE": {
            "sweep": {
                "task": "worker.sweep",
                "schedule": sweep_s,
                "options": {"queue": "sweep", "expires": sweep_s + CLOCKS_APART_S},  # of a pile one runs: `Pace`
            }
        },
    }


def kombu_url(url: str) -> str:
    """A Redis URL as kombu spells it: `unix:///path?db=1` becomes `redis+socket:///path?virtual_host=1`."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    credentials = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"redis+socket://{credentials}{parts.path}?virtual_host={database}"


def _transport_options(broker_url: str) -> dict[str, Any]:
    if urlsplit(broker_url).scheme not in {"redis", "rediss", "unix", "redis+socket"}:
        return {}
    return {"visibility_timeout": REDELIVER_AFTER_S, "socket_connect_timeout": 2, "socket_keepalive": True}
