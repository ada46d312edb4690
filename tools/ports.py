"""What `tools` and the rooms above it ask of rooms above themselves; filled from `CAPSTAN_PORTS` (design § 3)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, cast

from django.conf import settings
from django.utils.module_loading import import_string

from tools.runs import LeasedRun
from tools.units import Intervention


class Dispatcher(Protocol):
    """Tells a worker that a run is ready. Losing the message loses nothing: the sweep sends it again (CAP-062)."""

    def dispatch_after_commit(self, run: LeasedRun | type[LeasedRun], pk: int | None = None) -> None:
        """Send when the open transaction has committed, or now when none is open; never raises for a dead broker."""
        ...


class RunOwner(Protocol):
    """The room that owns one kind of run; approvals change runs through it, one transaction a change."""

    def locked(self, owner_id: int) -> AbstractContextManager[Intervention[Any]]:
        """Open the change from outside that covers this turn, step or call: `tools.units.intervention` of its run.

        Raises:
            NotVisible: no such run.
        """
        ...

    def resume(self, change: Intervention[Any], owner_id: int) -> None:
        """No call of it waits for a person any more: a run that waits is ready again, and a worker is told.

        A run that has ended, or whose owner has not parked it yet, stays as it is.
        """
        ...


@cache
def _load(path: str) -> Any:
    return import_string(path)()


def dispatcher() -> Dispatcher:
    """The dispatcher that settings name."""
    return cast("Dispatcher", _load(str(settings.CAPSTAN_PORTS["Dispatcher"])))


def run_owner(owner_kind: str) -> RunOwner:
    """The owner of runs of this kind, that settings name.

    Raises:
        KeyError: nobody owns that kind.
    """
    owners = cast("dict[str, str]", settings.CAPSTAN_PORTS["RunOwner"])
    return cast("RunOwner", _load(owners[owner_kind]))
