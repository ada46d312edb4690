"""Why a stream is not shown."""

from __future__ import annotations

from typing import ClassVar

from workspaces.errors import CapstanError


class StreamRefused(CapstanError):
    """The stream cannot be shown to this client."""

    code = "stream.refused"
    status: ClassVar[int] = 403


class NotSignedIn(StreamRefused):
    """Sign in first, or send a valid token."""

    code = "not_authenticated"
    status = 401


class NoSuchStream(StreamRefused):
    """There is no such conversation or plan."""

    code = "not_found"
    status = 404


class HostRefused(StreamRefused):
    """The Host header names no host of this server; ALLOWED_HOSTS lists them."""

    code = "host.invalid"
    status = 400


class MethodRefused(StreamRefused):
    """A stream is read with GET."""

    code = "method_not_allowed"
    status = 405


class StreamUnavailable(StreamRefused):
    """The database does not answer; come back in a moment."""

    code = "database.unavailable"
    status = 503
    retryable = True
