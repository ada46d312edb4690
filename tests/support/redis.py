"""Servers that only look like Redis."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def mute_redis() -> Iterator[str]:
    """The URL of a server that takes connections and never answers, as one that hangs does."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as mute:
        yield f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
