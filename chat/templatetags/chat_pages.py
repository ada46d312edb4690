"""Filters of the pages' templates. `format.js` says the same for what comes live."""

from __future__ import annotations

import re

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

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
    "approved": "Approved",
    "rejected": "Rejected",
    "expired": "Expired",
    "withdrawn": "Withdrawn",
    "executed": "Approved and done",
}


@register.filter
def words(status: str) -> str:
    """A status as people say it."""
    return WORDS.get(status, status.replace("_", " "))


@register.filter
def milliseconds(value: object) -> str:
    """Milliseconds as people read them: `340 ms`, `2.1 s`, `3 min 05 s`."""
    if not isinstance(value, int):
        return ""
    if value < 1_000:
        return f"{value} ms"
    if value < 60_000:
        return f"{value / 1_000:.1f} s"
    minutes, seconds = divmod(round(value / 1_000), 60)
    return f"{minutes} min {seconds:02d} s"


@register.filter
def inline_code(text: object) -> SafeString:
    """One line of a model's text: `code` set as code, everything escaped."""
    pieces = re.split(r"`([^`]+)`", str(text or ""))
    return format_html_join("", "{}", ((_code(piece) if odd % 2 else piece,) for odd, piece in enumerate(pieces)))


def _code(piece: str) -> SafeString:
    return format_html("<code>{}</code>", piece)
