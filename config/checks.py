"""System checks of the whole project: settings that would break a rule of the design."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004


@register("capstan")
def no_atomic_requests(**_options: Any) -> list[CheckMessage]:
    """A request that waits for a model must hold no connection (design § 2, rule 5)."""
    return [
        Error(
            f"ATOMIC_REQUESTS is on for the database {alias!r}: a request would hold its connection while it waits.",
            hint="Leave ATOMIC_REQUESTS off; units open their own transactions.",
            id="capstan_config.E001",
        )
        for alias, database in settings.DATABASES.items()
        if database.get("ATOMIC_REQUESTS")
    ]


@register(Tags.security)
def env_file_is_private(**_options: Any) -> Sequence[CheckMessage]:
    """`.env` holds keys."""
    path = settings.ENV_FILE
    if path is None or not path.exists() or not stat.S_IMODE(path.stat().st_mode) & 0o077:
        return []
    return [
        Warning(f"{path} can be read by others.", hint=f"chmod 600 {path}", id="capstan_config.W001"),
    ]
