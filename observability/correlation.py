"""The correlation id of the work at hand, for log lines; everything else passes it by argument (CAP-101)."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[str] = ContextVar("correlation_id", default="-")
_SAFE = re.compile(r"[A-Za-z0-9._:\-]{1,64}")


def new_correlation_id() -> str:
    """A fresh id, 32 hex digits."""
    return uuid.uuid4().hex


def accept(header: str | None) -> str:
    """The caller's id when it is safe to log (letters, digits, `._:-`, at most 64), else a fresh one."""
    return header if header and _SAFE.fullmatch(header) else new_correlation_id()


@contextmanager
def correlated(correlation_id: str) -> Iterator[str]:
    """Put `correlation_id` on every log line written inside."""
    token = _current.set(correlation_id)
    try:
        yield correlation_id
    finally:
        _current.reset(token)


class CorrelationFilter(logging.Filter):
    """Adds `correlation_id` to each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.correlation_id = _current.get()
        return True
