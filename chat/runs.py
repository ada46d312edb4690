"""What the sweep does to turns, and who owns a run of kind `turn` (design § 6)."""

from __future__ import annotations

from chat.models import Turn
from chat.services import end_from_outside
from tools.runs import RunStatus
from tools.units import intervention

SPENT = "This answer was begun {attempts} times and never got further. It was given up."


def fail_spent_turns() -> list[int]:
    """Fail the turns whose attempts are used up; their keys.

    Source: CAP-064.
    """
    failed = []
    for pk in Turn.objects.spent().values_list("pk", flat=True):
        with intervention(Turn, pk) as change:
            if not Turn.objects.spent().filter(pk=pk).exists():
                continue
            notice = SPENT.format(attempts=change.run.attempts)
            if end_from_outside(
                change, to=RunStatus.FAILED, stop_reason="attempts", notice=notice, error="run.attempts_used_up"
            ):
                failed.append(pk)
    return failed


def cancel_orphan_turns() -> list[int]:
    """End the cancelled turns that no live owner will end; their keys."""
    ended = []
    for pk in Turn.objects.cancel_orphans().values_list("pk", flat=True):
        with intervention(Turn, pk) as change:
            if not Turn.objects.cancel_orphans().filter(pk=pk).exists():
                continue
            if end_from_outside(change, to=RunStatus.CANCELLED, stop_reason="cancelled", notice="Cancelled."):
                ended.append(pk)
    return ended
