"""text/event-stream, written so that no payload can leave its line (CAP-100)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

PING: Final = b": ping\n\n"
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_EVENT_ID: Final = re.compile(r"(\d{1,18})(?:-([0-9a-f]{8}))?")


def encode(event: str, data: Mapping[str, Any], *, event_id: str | None = None) -> bytes:
    """One event. JSON in ASCII has no line break of any kind, so data is always one line."""
    if not _NAME.fullmatch(event):
        event = "message"  # a name with a break in it would write fields of its own
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode("ascii")


def event_id_of(stream_id: UUID, seq: int) -> str:
    """The SSE id: the number within the stream, and which stream, so that another stream's id is told apart."""
    return f"{seq}-{stream_id.hex[:8]}"


def position_of(last_id: str, stream_id: UUID) -> int | None:
    """The number within the stream that `last_id` names; None when it is no id of this stream.

    A bare number is taken as one of this stream.
    """
    match = _EVENT_ID.fullmatch(last_id.strip())
    if match is None or (match[2] is not None and match[2] != stream_id.hex[:8]):
        return None
    return int(match[1])
