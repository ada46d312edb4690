"""Filters of the pages' templates. `format.js` says the same for what comes live."""

from __future__ import annotations

from datetime import datetime

from django import template

register = template.Library()

WORDS = {
    "queued": "Queued",
    "pending": "Planned",
    "running": "Running",
    "waiting_retry": "Waiting to try again",
    "waiting_approval": "Waiting for approval",
    "completed": "Done",
    "failed": "Failed",
    "cancelled": "Cancelled",
    "skipped": "Skipped",
    "done": "Done",
    "blocked": "Refused",
    "unknown": "Outcome unknown",
}


@register.filter
def words(status: str) -> str:
    """A status as people say it."""
    return WORDS.get(status, status.replace("_", " "))


@register.filter
def milliseconds(value: int | None) -> str:
    """Milliseconds as people read them: `340 ms`, `2.1 s`, `3 min 05 s`."""
    if value is None:
        return ""
    if value < 1_000:
        return f"{value} ms"
    if value < 60_000:
        return f"{value / 1_000:.1f} s"
    minutes, seconds = divmod(round(value / 1_000), 60)
    return f"{minutes} min {seconds:02d} s"


@register.filter
def until(started: datetime | None, ended: datetime | None) -> str:
    """The time between two moments; empty while one of them is missing."""
    if started is None or ended is None:
        return ""
    return milliseconds(round((ended - started).total_seconds() * 1_000))
