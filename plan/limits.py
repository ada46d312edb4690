"""What ends a plan before its steps do: its owner's leaving, a critical failure, deadline and budget (CAP-050)."""

from __future__ import annotations

from observability.models import AgentInteraction
from observability.queries import usage_of
from plan.models import ExecutionPlan, StepStatus
from tools.membership import is_member
from tools.runs import ClockTimestamp


def failure(plan: ExecutionPlan) -> tuple[str, str] | None:
    """The step that fails the plan (or an empty name) and why, as rows are now; None: nothing does."""
    if not is_member(plan.owner_id, plan.workspace_id):
        return "", "its owner is no active member of the workspace any more"
    broken = plan.steps.filter(status=StepStatus.FAILED, is_critical=True).order_by("order").first()
    if broken is not None:
        return broken.key, broken.error
    late = (
        plan.deadline is not None and ExecutionPlan.objects.filter(pk=plan.pk, deadline__lt=ClockTimestamp()).exists()
    )
    if late:
        return "", "the plan's deadline has passed"
    if plan.budget_usd is None and plan.budget_tokens is None:
        return None
    used = usage_of(AgentInteraction.objects.filter(plan_id=plan.pk))
    if plan.budget_usd is not None and used.cost_usd is None:
        return "", "the plan's budget in USD cannot be kept: the price of its model is unknown; set CAPSTAN_PRICES"
    if plan.budget_usd is not None and used.cost_usd is not None and used.cost_usd > plan.budget_usd:
        return "", f"the plan's budget of {plan.budget_usd} USD is spent"
    if plan.budget_tokens is not None and used.tokens > plan.budget_tokens:
        return "", f"the plan's budget of {plan.budget_tokens} tokens is spent"
    return None
