"""The one answer that every call gives (CAP-031), and how failures are put into words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from django.db import DatabaseError, OperationalError
from psycopg import errors as pg

from tools.errors import InvalidArguments, NotStorable, ToolTimeout, UnitBroken
from tools.types import Envelope
from tools.values import clean_text
from workspaces.errors import CapstanError

logger = logging.getLogger(__name__)

ERROR_CHARACTERS = 500


def succeeded(result: Any) -> Envelope:
    """The envelope of a call that worked; `result` is plain JSON."""
    return {"success": True, "result": result, "error": None}


def refused(error: str) -> Envelope:
    """The envelope of a call that did not; the text is cut to 500 characters."""
    return {"success": False, "result": None, "error": shortened(error)}


def shortened(text: str, limit: int = ERROR_CHARACTERS) -> str:
    """`text`, storable, and cut to `limit` characters."""
    text = clean_text(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def causes(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and what it came from, nearest first."""
    seen: set[int] = set()
    current: BaseException | None = exc
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def must_rerun(exc: BaseException) -> bool:
    """Whether the whole unit has to run again: a deadlock or a serialization failure (design § 5)."""
    return any(isinstance(cause, (pg.DeadlockDetected, pg.SerializationFailure)) for cause in causes(exc))


def timed_out(exc: BaseException) -> bool:
    """Whether a call ended because its time was up."""
    return any(isinstance(cause, (pg.QueryCanceled, ToolTimeout)) for cause in causes(exc))


def described(exc: BaseException, *, timeout_s: float) -> str:
    """What the model reads about a tool that failed: a name and a reason, and no row data of the database."""
    if timed_out(exc):
        return f"timed out after {timeout_s:g} s"
    if isinstance(exc, InvalidArguments):
        return exc.problems
    if isinstance(exc, NotStorable):
        return f"the tool's {exc.text}"
    if isinstance(exc, UnitBroken):
        return f"the tool's writes were undone: {exc.details['reason']}"
    if isinstance(exc, CapstanError):
        return str(exc)
    if isinstance(exc, OperationalError) and isinstance(exc.__cause__, pg.LockNotAvailable):
        return f"timed out waiting for a lock for {timeout_s:g} s"
    if isinstance(exc, DatabaseError):
        cause = exc.__cause__
        primary = cause.diag.message_primary if isinstance(cause, pg.Error) else None
        return f"{type(exc).__name__}: {primary or 'the database refused'}"
    text = str(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
