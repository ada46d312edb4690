"""Django's DATABASES entry from a URL."""

from __future__ import annotations

from typing import Any

import dj_database_url

from workspaces.errors import ConfigurationError

POOL_TIMEOUT_S = 10


def database_settings(url: str, *, pool_size: int, idle_in_transaction_s: float = 0) -> dict[str, Any]:
    """What Django needs to reach the database.

    Args:
        url: `postgres://user:password@host:port/name`; a unix socket's folder is a percent-encoded host, or `?host=`.
        pool_size: connections of the process's pool at most; 0 for no pool.
        idle_in_transaction_s: the server ends a session whose transaction is open for so long and does nothing, such as
            a frozen worker's, so that its locks hold nobody up; 0: never.

    Raises:
        ConfigurationError: `url` names no PostgreSQL database.
    """
    try:
        parsed: dict[str, Any] = dict(dj_database_url.parse(url))
    except ValueError:
        parsed = {}
    if parsed.get("ENGINE") != "django.db.backends.postgresql" or not parsed.get("NAME"):
        raise ConfigurationError(
            setting="DATABASE_URL", hint="It must read postgres://user:password@host:port/name; PostgreSQL is required."
        )
    options = dict(parsed.get("OPTIONS", {}))
    parsed["HOST"] = options.pop("host", "") or parsed.get("HOST", "")
    if pool_size:
        options["pool"] = {"min_size": 1, "max_size": pool_size, "timeout": POOL_TIMEOUT_S}
    if idle_in_transaction_s:
        limit = f"-c idle_in_transaction_session_timeout={idle_in_transaction_s * 1000:.0f}"
        options["options"] = f"{options['options']} {limit}" if "options" in options else limit
    options.setdefault("prepare_threshold", 5)  # for server-side cursors, the hot path's; Django's own never prepare
    return {**parsed, "OPTIONS": options, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": bool(pool_size)}
