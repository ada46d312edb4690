"""What `tools` raises."""

from __future__ import annotations

from workspaces.errors import CapstanError


class ToolsError(CapstanError):
    """Root of what `tools` raises."""


class LeaseLost(ToolsError):
    """The run was reclaimed, cancelled or ended while this process was running it."""

    code = "run.lease_lost"


class RunEnded(ToolsError):
    """The run has ended, or its state no longer allows this."""

    code = "run.conflict"


class WaitingInsideTransaction(ToolsError):
    """A wait was about to begin with a transaction open; that would hold a connection, and could lose its writes."""

    code = "run.waiting_in_transaction"
