"""Who owns a run of kind `step`: its approvals change its plan through here (design § 3 "Reaching up")."""

from __future__ import annotations

from contextlib import AbstractContextManager

from plan import services, steering
from plan.models import ExecutionPlan, PlanStep, StepStatus
from tools.units import Intervention, intervention
from workspaces.errors import NotVisible


class StepOwner:
    """Fills `tools.ports.RunOwner`."""

    def locked(self, owner_id: int) -> AbstractContextManager[Intervention[ExecutionPlan]]:
        """Open the change from outside of the step's plan.

        Raises:
            NotVisible: no such step.
        """
        plan_id = PlanStep.objects.filter(pk=owner_id).values_list("plan_id", flat=True).first()
        if plan_id is None:
            raise NotVisible(step=owner_id)
        return intervention(ExecutionPlan, plan_id)

    def resume(self, change: Intervention[ExecutionPlan], owner_id: int) -> None:
        """The step is pending again when it waited for a person; its plan goes back to the queue when it waited too."""
        if not PlanStep.objects.approved(owner_id):
            return
        step = PlanStep.objects.get(pk=owner_id)
        assert step.status == StepStatus.PENDING
        services.record_step(step, events=change)
        ExecutionPlan.objects.revise(step.plan_id)
        steering.wake_plan(step.plan_id)
