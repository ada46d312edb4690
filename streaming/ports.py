"""What the SSE handler asks of the doors."""

from __future__ import annotations

from typing import Protocol

from streaming.types import Grant, StreamRequest


class StreamGate(Protocol):
    """Decides who may read a stream; asked when a client connects and at every ping."""

    def __call__(self, request: StreamRequest) -> Grant:
        """What the client may read, from the database now.

        Raises:
            NotSignedIn: no valid session or token, or the user was deactivated.
            NoSuchStream: no such stream, or not theirs to read.
        """
        ...
