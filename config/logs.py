"""One line a log record, with the correlation id of the work that wrote it."""

from __future__ import annotations

import logging
import time
from typing import Any

from observability.correlation import CorrelationFilter

LAYOUT = "{asctime}.{msecs:03.0f} {levelname} {name} [{correlation_id}] {message}"


class OneLineFormatter(logging.Formatter):
    """A message cannot forge a second record; tracebacks stay on its line unless `multiline`."""

    def __init__(self, *, multiline: bool = False) -> None:
        super().__init__(LAYOUT, datefmt="%Y-%m-%dT%H:%M:%S", style="{", defaults={"correlation_id": "-"})
        self._multiline = multiline
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return _one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if self._multiline else _one_line(text)


class NoTraceOfRefusals(logging.Filter):
    """A 403 or 404 is an answer, not a failure: its record keeps its line and loses the traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            record.exc_info = record.exc_text = None
        return True


def logging_settings(*, debug: bool) -> dict[str, Any]:
    """Django's LOGGING: everything to standard error, vendors' chatter from WARNING on."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"correlation": {"()": CorrelationFilter}, "refusals": {"()": NoTraceOfRefusals}},
        "formatters": {"line": {"()": OneLineFormatter, "multiline": debug}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["correlation"]},
        },
        "root": {"handlers": ["console"], "level": "INFO"},
        "loggers": {
            "django": {"handlers": [], "level": "INFO", "propagate": True},
            "django.request": {"filters": ["refusals"]},
            "django.server": {"handlers": [], "propagate": True},
            **{name: {"handlers": [], "propagate": True} for name in ("uvicorn", "uvicorn.error", "uvicorn.access")},
            **{
                name: {"level": "WARNING"}
                for name in ("httpx", "httpx2", "httpcore", "openai", "anthropic", "psycopg.pool")
            },
        },
    }


def _one_line(text: str) -> str:
    return (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") if "\n" in text or "\r" in text else text
    )
