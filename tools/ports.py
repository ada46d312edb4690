"""What `tools` and the rooms above it ask of rooms above themselves; filled from `CAPSTAN_PORTS` (design § 3)."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol, cast

from django.conf import settings
from django.utils.module_loading import import_string

from tools.runs import LeasedRun


class Dispatcher(Protocol):
    """Tells a worker that a run is ready. Losing the message loses nothing: the sweep sends it again (CAP-062)."""

    def dispatch_after_commit(self, run: LeasedRun | type[LeasedRun], pk: int | None = None) -> None:
        """Send when the open transaction has committed, or now when none is open; never raises for a dead broker."""
        ...


@cache
def _load(path: str) -> Any:
    return import_string(path)()


def dispatcher() -> Dispatcher:
    """The dispatcher that settings name."""
    return cast("Dispatcher", _load(str(settings.CAPSTAN_PORTS["Dispatcher"])))
