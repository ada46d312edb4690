"""What `context` raises."""

from __future__ import annotations

from workspaces.errors import CapstanError


class ContextError(CapstanError):
    """Root of what `context` raises."""


class UnknownScope(ContextError):
    """No workspace has this scope id, or the user is no member of it."""

    code = "context.unknown_scope"


class SnapshotInvalid(ContextError):
    """A snapshot builder gave something that is no plain JSON; the detail `builder` names it."""

    code = "context.snapshot_invalid"
