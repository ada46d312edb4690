"""Changes of a plan from outside: cancel, retry, and what recovery ends (design § 5.6).

Each locks the stream's row first, then the plan's, as the plan's owner does, and takes one arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from events.models import Stream
from observability.correlation import new_correlation_id
from plan import services
from plan.errors import OutcomeInvalid, PlanConflict
from plan.models import STEP_TERMINAL, ExecutionPlan, PlanStep, StepMessage, StepStatus
from tools.models import ExecutionStatus, ToolExecution
from tools.ports import dispatcher
from tools.runs import MAX_ATTEMPTS, TERMINAL, RunStatus
from tools.units import Intervention, intervention, one_by_one
from workspaces.models import User

OUTCOME_TEXT = 4_000  # characters
SPENT = f"given up after {MAX_ATTEMPTS} attempts in a row that came to nothing; its worker died each time"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel came to: the plan's status now, and whether an owner has still to end it."""

    status: str
    ended: bool


def cancel_plan(*, plan_id: int) -> Cancelled:
    """Cancel a plan: at once when no live worker has it, else its owner ends it within a second or so.

    The caller has checked that its user may. Cancelling twice, or after the end, changes nothing.
    """
    with intervention(ExecutionPlan, plan_id) as change:
        plan = change.run
        if plan.ended:
            return Cancelled(status=plan.status, ended=True)
        ExecutionPlan.objects.request_cancel(plan_id)
        if not ExecutionPlan.objects.cancel_orphans().filter(pk=plan_id).exists():
            return Cancelled(status=plan.status, ended=False)
        _end_unowned(change, to=RunStatus.CANCELLED)
        return Cancelled(status=RunStatus.CANCELLED, ended=True)


def retry_plan(*, plan_id: int, by: User, now: datetime) -> ExecutionPlan:
    """Make a new plan from the first failed step of a failed or cancelled one, and have it run.

    The steps that completed are copied, with their results; the rest is pending again, the failed step with its
    journal, so that its stored replies are not asked for again and its calls keep their idempotency keys.

    Raises:
        PlanConflict: the plan has neither failed nor been cancelled, or a fork of it has not ended yet.
    """
    return fork_plan(plan_id=plan_id, by=by, now=now, from_key=None, from_scratch=False)


@transaction.atomic
def fork_plan(
    *, plan_id: int, by: User, now: datetime, from_key: str | None, from_scratch: bool = False
) -> ExecutionPlan:
    """Make a new plan from step `from_key` of an ended one: the steps before it copied, the rest pending again.

    Args:
        by: whose plan the new one is.
        from_key: the first step that runs again; None: every step that did not complete.
        from_scratch: leave the journal of the steps that run again behind; their calls are then new calls.

    Raises:
        PlanConflict: the plan has not ended, has no such step, or a fork of it, then named, has not ended yet.
    """
    with intervention(ExecutionPlan, plan_id) as change:
        old = change.run
        if not old.ended or (from_key is None and old.status == RunStatus.COMPLETED):
            raise PlanConflict(plan=plan_id, status=old.status)
        steps = list(PlanStep.objects.of(plan_id))
        first = next((step.order for step in steps if step.key == from_key), None)
        if from_key is not None and first is None:
            raise PlanConflict(plan=plan_id, status=old.status, step=from_key)
        open_forks = ExecutionPlan.objects.filter(retry_of=old).exclude(status__in=TERMINAL)
        fork = open_forks.values_list("pk", flat=True).first()
        if fork is not None:
            raise PlanConflict(plan=plan_id, status=old.status, fork=fork)
    new = ExecutionPlan.objects.create(
        workspace_id=old.workspace_id,
        stream_id=old.stream_id,
        correlation_id=new_correlation_id(),
        status=RunStatus.PENDING,
        owner=by,
        identity=old.identity,
        goal=old.goal,
        context_json=old.context_json,
        board={} if from_scratch else old.board,
        template=old.template,
        conversation_id=old.conversation_id,
        turn_id=old.turn_id,
        retry_of=old,
        subject_type_id=old.subject_type_id,
        subject_id=old.subject_id,
        budget_usd=old.budget_usd,
        budget_tokens=old.budget_tokens,
        adaptable=old.adaptable,
        adapt_permission=old.adapt_permission,
        created_at=now,
    )
    rows = PlanStep.objects.bulk_create([_copy(step, new, first, from_scratch=from_scratch) for step in steps])
    if not from_scratch:
        kept = {row.key for row in rows if row.status != StepStatus.PENDING}
        begun = [row for row in rows if row.status == StepStatus.PENDING and kept.issuperset(row.reads)]
        _copy_journals({row.copied_from_id: row for row in begun})
    sink = services.Recorded()
    services.record_created(new, rows, events=sink)
    Stream.objects.append(new.stream_id, sink.events, correlation_id=new.correlation_id)
    dispatcher().dispatch_after_commit(new)
    return new


def written_from(*, plan_id: int, key: str) -> list[dict[str, Any]]:
    """What step `key` of a plan and those behind it wrote, for somebody who lets them run again from scratch."""
    first = PlanStep.objects.of(plan_id).filter(key=key).values_list("order", flat=True).first()
    steps = dict(PlanStep.objects.of(plan_id).filter(order__gte=first or 0).values_list("pk", "key"))
    rows = ToolExecution.objects.filter(owner_kind="step", owner_id__in=steps, effect__in=("write", "external"))
    kept = rows.exclude(status=ExecutionStatus.BLOCKED).order_by("pk")
    return [
        {"step": steps[row.owner_id], "tool": row.tool_name, "arguments": row.arguments, "status": row.status}
        for row in kept
    ]


def assess_step(
    *, plan_id: int, key: str, by: User, satisfaction: int | None, assessment: str = "", suggestion: str = ""
) -> PlanStep:
    """Keep what a person thinks of a step that has ended; the latest word stays (CAP-080).

    Args:
        by: who says so; the caller has checked that he may see the plan.
        satisfaction: 1 (bad) to 5 (good); None: not said.
        assessment, suggestion: up to 4,000 characters each.

    Raises:
        OutcomeInvalid: nothing was said, or not within these limits.
        PlanConflict: the plan has no such step, or it has not ended.
    """
    too_long = max(len(assessment), len(suggestion)) > OUTCOME_TEXT
    if too_long or (satisfaction is not None and not 1 <= satisfaction <= 5):
        raise OutcomeInvalid(problem=f"satisfaction is 1 to 5, texts at most {OUTCOME_TEXT} characters")
    if satisfaction is None and not assessment.strip() and not suggestion.strip():
        raise OutcomeInvalid(problem="say something: satisfaction, assessment or suggestion")
    with intervention(ExecutionPlan, plan_id) as change:
        assessed = (
            PlanStep.objects.of(plan_id)
            .filter(key=key, status__in=STEP_TERMINAL)
            .update(
                outcome_satisfaction=satisfaction,
                outcome_assessment=assessment.strip(),
                improvement_suggestion=suggestion.strip(),
            )
        )
        if not assessed:
            raise PlanConflict(plan=plan_id, step=key, status=change.run.status)
        step = PlanStep.objects.get(plan_id=plan_id, key=key)
        services.record_step(step, events=change, satisfaction=satisfaction, assessed_by=by.pk)
    return step


def fail_spent_plans() -> int:
    """Fail the plans whose attempts are used up and whose last owner is gone; how many (CAP-064)."""

    def fail(pk: int) -> bool:
        with intervention(ExecutionPlan, pk) as change:
            if not ExecutionPlan.objects.spent().filter(pk=pk).exists():
                return False
            _end_unowned(change, to=RunStatus.FAILED, error=SPENT)
        return True

    return len(one_by_one(ExecutionPlan.objects.spent().values_list("pk", flat=True), fail))


def cancel_orphan_plans() -> int:
    """End the plans that somebody cancelled and that no live owner will end; how many."""

    def cancel(pk: int) -> bool:
        with intervention(ExecutionPlan, pk) as change:
            if not ExecutionPlan.objects.cancel_orphans().filter(pk=pk).exists():
                return False
            _end_unowned(change, to=RunStatus.CANCELLED)
        return True

    return len(one_by_one(ExecutionPlan.objects.cancel_orphans().values_list("pk", flat=True), cancel))


def wake_idle_plans() -> int:
    """Waiting plans that have something to do after all go back to the queue; how many.

    A decision or an adapted step moves its plan in the same commit; this is the net under it.
    """

    def wake(pk: int) -> bool:
        with intervention(ExecutionPlan, pk):
            return pk in ExecutionPlan.objects.idle_with_work() and wake_plan(pk)

    return len(one_by_one(ExecutionPlan.objects.idle_with_work(), wake))


def wake_plan(plan_id: int) -> bool:
    """waiting -> pending because a step became ready, and a worker is told; whether the arrow was taken.

    Stream and plan are locked by then.
    """
    waiting = (RunStatus.WAITING_APPROVAL, RunStatus.WAITING_RETRY)
    woken = ExecutionPlan.objects.move(plan_id, frm=waiting, to=RunStatus.PENDING, not_before=None)
    if woken:
        dispatcher().dispatch_after_commit(ExecutionPlan, plan_id)
    return woken


def _end_unowned(change: Intervention[ExecutionPlan], *, to: str, error: str = "") -> None:
    plan = change.run
    if to == RunStatus.FAILED:
        arrow = services.failed(plan, error=error, step=_first_unended(plan.pk), events=change)
    else:
        arrow = services.cancelled(plan, events=change)
    ExecutionPlan.objects.move(plan.pk, frm=set(RunStatus.values) - set(TERMINAL), to=arrow.to, **arrow.columns)


def _first_unended(plan_id: int) -> str:
    running = PlanStep.objects.filter(plan_id=plan_id, status=StepStatus.RUNNING).order_by("order")
    return running.values_list("key", flat=True).first() or ""


def _copy(step: PlanStep, plan: ExecutionPlan, first: int | None, *, from_scratch: bool) -> PlanStep:
    done = step.status == StepStatus.COMPLETED or (step.status == StepStatus.FAILED and not step.is_critical)
    kept = done if first is None else step.order < first
    copy = PlanStep(
        plan=plan,
        key=step.key,
        order=step.order,
        kind=step.kind,
        action=step.action,
        recipe=step.recipe,
        recipe_version=step.recipe_version,
        tool_name=step.tool_name,
        args_json=step.args_json,
        reads=step.reads,
        is_critical=step.is_critical,
        tier=step.tier,
        status=StepStatus.PENDING,
        origin_id=None if from_scratch and not kept else step.origin_id or step.pk,
        copied_from=step,
    )
    if kept and step.status in STEP_TERMINAL:
        for name in (
            "status",
            "result_json",
            "error",
            "llm_synthesis",
            "model_used",
            "stop_reason",
            "outcome_assessment",
            "outcome_satisfaction",
            "improvement_suggestion",
            "started_at",
            "ended_at",
        ):
            setattr(copy, name, getattr(step, name))
    return copy


def _copy_journals(copies: dict[int | None, PlanStep]) -> None:
    """The rounds of steps that run again on what they had read before; a last answer is asked for anew."""
    journals: dict[int, list[StepMessage]] = {}
    for row in StepMessage.objects.filter(step_id__in=[key for key in copies if key is not None]):
        journals.setdefault(row.step_id, []).append(row)
    kept: list[StepMessage] = []
    for step_id, rows in journals.items():
        rounds = [row for row in rows if row.role == "assistant"]
        answered = rounds[-1].round if rounds and not rounds[-1].tool_calls else None
        for row in rows:
            if answered is not None and (row.round >= answered or (row.role == "note" and row.round == answered - 1)):
                continue
            row.step = copies[step_id]
            row.pk = None
            row._state.adding = True
            kept.append(row)
    StepMessage.objects.bulk_create(kept)
