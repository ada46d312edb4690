"""Finds what nobody works on and wakes a worker for it; ends what nobody will (CAP-064, CAP-065).

Recovery goes through the ordinary claim: there is one way to start. Two sweeps at once do no harm, since each row is
taken by one UPDATE.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from chat import idempotency
from chat import runs as chat_runs
from chat.models import Turn
from plan import steering
from plan.models import ExecutionPlan
from tools.doors import fail_spent_calls
from tools.models import ToolCallRun
from tools.runs import LeasedRun
from tools.services import expire_approvals
from worker.dispatch import send

logger = logging.getLogger(__name__)

BATCH = 500


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: runs sent to workers, failed with their attempts used up, cancelled without an owner."""

    sent: int = 0
    failed: int = 0
    cancelled: int = 0


class Pace:
    """How often a process sweeps, however many messages ask for it: several beats send more, and so does a pile.

    What was sent while no worker took it lies there for minutes, since a message's end of life is stamped by one host's
    clock and read by another's.
    """

    def __init__(self) -> None:
        self._began: float | None = None

    def due(self, at: float) -> bool:
        """Whether the last sweep began half an interval ago or earlier; it begins then.

        Args:
            at: seconds on a monotonic clock.
        """
        if self._began is not None and at - self._began < settings.CAPSTAN_LEASE_SECONDS / 12:
            return False
        self._began = at
        return True


pace = Pace()


def sweep(*, now: datetime) -> Swept:
    """Look once over all runs, turns and plans.

    Args:
        now: aware UTC time by the database's clock, for approvals and old keys; which run is due, its queries ask.
    """
    failed = steering.fail_spent_plans() + len(chat_runs.fail_spent_turns()) + fail_spent_calls()
    cancelled = steering.cancel_orphan_plans() + len(chat_runs.cancel_orphan_turns())
    expire_approvals(now)
    idempotency.purge(now)
    steering.wake_idle_plans()
    swept = Swept(
        sent=send_due(Turn) + send_due(ExecutionPlan) + send_due(ToolCallRun), failed=failed, cancelled=cancelled
    )
    if swept != Swept():
        logger.info("sweep at %s: %s", now.isoformat(timespec="seconds"), swept)
    return swept


def recover_plans() -> Swept:
    """The part of a sweep that concerns plans (CAP-064)."""
    failed, cancelled = steering.fail_spent_plans(), steering.cancel_orphan_plans()
    steering.wake_idle_plans()
    return Swept(sent=send_due(ExecutionPlan), failed=failed, cancelled=cancelled)


def send_due(model: type[LeasedRun]) -> int:
    """Send a message for each run that is free and that nobody was told of lately; how many went out.

    Rows are marked before they are sent, so a broker that is down costs one message's time and not a storm: the rest
    is due again after its back-off.
    """
    sent = 0
    for due in model._default_manager.take_due(limit=BATCH):  # type: ignore[attr-defined]  # a LeasedRunQuerySet's
        if not send(model.KIND, due.pk, suspect=due.suspect):
            break
        sent += 1
    return sent
