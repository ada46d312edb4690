"""What the sweep does to turns, and who owns a run of kind `turn` (design § 6)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from chat.models import Turn
from chat.services import end_from_outside
from tools.ports import dispatcher
from tools.runs import RunStatus
from tools.units import Intervention, intervention, one_by_one

SPENT = "This answer was begun {attempts} times and never got further. It was given up."


class TurnOwner:
    """Fills `tools.ports.RunOwner` for turns."""

    def locked(self, owner_id: int) -> AbstractContextManager[Intervention[Turn]]:
        """Open the change from outside of one turn.

        Raises:
            NotVisible: no such turn.
        """
        return intervention(Turn, owner_id)

    def resume(self, change: Intervention[Turn], owner_id: int) -> None:
        """A turn that waits is queued again, and a worker is told."""
        if Turn.objects.move(owner_id, frm=(RunStatus.WAITING_APPROVAL,), to=Turn.READY):
            dispatcher().dispatch_after_commit(change.run)


def fail_spent_turns() -> list[int]:
    """Fail the turns whose attempts are used up; their keys.

    Source: CAP-064.
    """

    def fail(pk: int) -> bool:
        with intervention(Turn, pk) as change:
            if not Turn.objects.spent().filter(pk=pk).exists():
                return False
            notice = SPENT.format(attempts=change.run.attempts)
            return end_from_outside(
                change, to=RunStatus.FAILED, stop_reason="attempts", notice=notice, error="run.attempts_used_up"
            )

    return one_by_one(Turn.objects.spent().values_list("pk", flat=True), fail)


def cancel_orphan_turns() -> list[int]:
    """End the cancelled turns that no live owner will end; their keys."""

    def cancel(pk: int) -> bool:
        with intervention(Turn, pk) as change:
            if not Turn.objects.cancel_orphans().filter(pk=pk).exists():
                return False
            return end_from_outside(change, to=RunStatus.CANCELLED, stop_reason="cancelled", notice="Cancelled.")

    return one_by_one(Turn.objects.cancel_orphans().values_list("pk", flat=True), cancel)
