"""What `worker` raises."""

from __future__ import annotations

from workspaces.errors import CapstanError


class WorkerError(CapstanError):
    """Root of what `worker` raises."""


class OwnerGone(WorkerError):
    """The plan's owner was deactivated, or left the workspace, while the plan ran."""

    code = "worker.owner_gone"


class SliceOver(WorkerError):
    """The worker leaves the plan between two rounds: its time slice is over, or the process stops."""

    code = "worker.slice_over"
