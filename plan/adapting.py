"""Changing the pending steps of a plan while it lives, under its lock, each change on record (CAP-055)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from events.types import EventName
from plan import services, steering
from plan.creation import resolved
from plan.errors import NotAdaptable, PlanConflict, PlanInvalid
from plan.models import ExecutionPlan, PlanChange, PlanStep, StepKind, StepStatus
from plan.types import MAX_STEPS, StepChange, StepSpec
from tools.units import Intervention, intervention
from workspaces.models import User
from workspaces.permissions import may

ADAPT = "capstan_plan.adapt_executionplan"
FIELDS = frozenset({"action", "kind", "recipe", "tool_name", "args", "reads", "is_critical", "tier"})


def adapt_plan(
    *,
    plan_id: int,
    changes: Sequence[StepChange],
    by: User,
    by_step: int | None = None,
    known_tools: Collection[str] | None = None,
    revision: int | None = None,
) -> list[PlanChange]:
    """Insert, remove, update or reorder steps that have not begun; all of the changes, or none.

    A removed step hands its reads to its readers. An inserted step is read by the step right behind it.

    Args:
        by: who changes it, or whose planning step does.
        by_step: the planning step's key in the database; None: a person.
        known_tools: names that steps may use; None: not checked.
        revision: of the plan, as its reader knows it; None: whatever it is by now.

    Returns:
        What was written down: one row a change, with what was before and what is after.

    Raises:
        NotAdaptable: the plan does not allow it, or not to this user.
        PlanConflict: the plan has ended or is at another revision, or a step that is to change has begun.
        PlanInvalid: the plan would not hold together afterwards.
    """
    with intervention(ExecutionPlan, plan_id) as change:
        plan = change.run
        _check_may(plan, by)
        if plan.ended:
            raise PlanConflict(plan=plan_id, status=plan.status)
        if revision not in {None, plan.revision}:
            raise PlanConflict(plan=plan_id, status=plan.status, reason="somebody has changed the plan meanwhile")
        written = [_apply(plan, one, by=by, by_step=by_step) for one in changes]
        _check_whole(plan, known_tools)
        PlanChange.objects.bulk_create(written)
        ExecutionPlan.objects.revise(plan_id)
        _tell(change, written)
        if PlanStep.objects.next_ready(plan_id):
            steering.wake_plan(plan_id)
    return written


def may_adapt(plan: ExecutionPlan, user: User) -> bool:
    """Whether `user` may change the plan's pending steps at all."""
    if not plan.adaptable:
        return False
    if user.pk != plan.owner_id and not may(user, ADAPT, workspace=plan.workspace_id):
        return False
    return not plan.adapt_permission or may(user, plan.adapt_permission, workspace=plan.workspace_id)


def _check_may(plan: ExecutionPlan, user: User) -> None:
    if not may_adapt(plan, user):
        raise NotAdaptable(plan=plan.pk, adaptable=plan.adaptable, permission=plan.adapt_permission or ADAPT)


def _apply(plan: ExecutionPlan, change: StepChange, *, by: User, by_step: int | None) -> PlanChange:
    operations = {"insert": _insert, "remove": _remove, "update": _update, "reorder": _reorder}
    if change.op not in operations:
        raise PlanInvalid(problems=[f"op: one of {', '.join(operations)}, not {change.op!r}"])
    unknown = sorted(set(change.fields) - FIELDS)
    if unknown:
        raise PlanInvalid(problems=[f"{change.key}: a step has no {name!r}" for name in unknown])
    before, after = operations[change.op](plan, change)
    return PlanChange(plan=plan, by=by, by_step_id=by_step, action=change.op, before=before, after=after)


def _insert(plan: ExecutionPlan, change: StepChange) -> tuple[Any, Any]:
    steps = list(PlanStep.objects.of(plan.pk))
    if any(step.key == change.key for step in steps):
        raise PlanInvalid(problems=[f"{change.key}: key: used by another step"])
    if change.fields.get("kind", StepKind.LLM) == StepKind.DATA and not plan.template:
        raise PlanInvalid(problems=[f"{change.key}: kind: only templates make data steps"])
    place = _place(plan, steps, change)
    behind = [step for step in steps if step.order >= place]
    if any(step.status != StepStatus.PENDING for step in behind):
        raise PlanConflict(plan=plan.pk, step=change.key, reason="a step behind that place has begun")
    before_it = next((step.key for step in reversed(steps) if step.order < place), None)
    fields = {**change.fields, "action": str(change.fields.get("action", ""))}
    reads = fields.pop("reads", None)
    reads = tuple(reads) if reads is not None else ((before_it,) if before_it else ())
    spec = StepSpec(key=change.key, reads=reads, **fields)
    for step in reversed(behind):
        PlanStep.objects.filter(pk=step.pk).update(order=step.order + 1)
    row = services.step_row(plan, spec, place)
    row.save(force_insert=True)
    if behind:
        reader = behind[0]
        PlanStep.objects.filter(pk=reader.pk).update(reads=[*reader.reads, row.key])
    return None, _snapshot(row)


def _place(plan: ExecutionPlan, steps: Sequence[PlanStep], change: StepChange) -> int:
    if change.after is None:
        pending = [step.order for step in steps if step.status == StepStatus.PENDING]
        return min(pending, default=len(steps) + 1)
    after = next((step for step in steps if step.key == change.after), None)
    if after is None:
        raise PlanInvalid(problems=[f"{change.key}: after: there is no step {change.after!r}"])
    return after.order + 1


def _remove(plan: ExecutionPlan, change: StepChange) -> tuple[Any, Any]:
    step = _pending(plan, change.key)
    for reader in PlanStep.objects.of(plan.pk).filter(reads__contains=[step.key]):
        handed = [key for read in reader.reads for key in (step.reads if read == step.key else [read])]
        PlanStep.objects.filter(pk=reader.pk).update(reads=list(dict.fromkeys(handed)))
    before = _snapshot(step)
    step.delete()
    return before, None


def _update(plan: ExecutionPlan, change: StepChange) -> tuple[Any, Any]:
    step = _pending(plan, change.key)
    if change.fields.get("kind", step.kind) != step.kind:
        raise PlanInvalid(problems=[f"{step.key}: kind: does not change; remove the step and insert another"])
    before = _snapshot(step)
    columns = {"args_json" if name == "args" else name: value for name, value in change.fields.items()}
    if "reads" in columns:
        columns["reads"] = list(columns["reads"])
    if columns and not PlanStep.objects.filter(pk=step.pk, status=StepStatus.PENDING).update(**columns):
        raise PlanConflict(plan=plan.pk, step=step.key, reason="the step has begun")
    step.refresh_from_db()
    return before, _snapshot(step)


def _reorder(plan: ExecutionPlan, change: StepChange) -> tuple[Any, Any]:
    pending = list(PlanStep.objects.of(plan.pk).filter(status=StepStatus.PENDING))
    if sorted(change.keys) != sorted(step.key for step in pending):
        raise PlanInvalid(problems=["keys: name every pending step once, and no other"])
    places = [step.order for step in pending]
    ids = {step.key: step.pk for step in pending}
    for key, order in zip(change.keys, places, strict=True):
        PlanStep.objects.filter(pk=ids[key]).update(order=order)
    return [step.key for step in pending], list(change.keys)


def _pending(plan: ExecutionPlan, key: str) -> PlanStep:
    step = PlanStep.objects.of(plan.pk).filter(key=key).first()
    if step is None:
        raise PlanInvalid(problems=[f"there is no step {key!r}"])
    if step.status != StepStatus.PENDING or step.started_at is not None:
        raise PlanConflict(plan=plan.pk, step=key, status=step.status, reason="the step has begun")
    return step


def _check_whole(plan: ExecutionPlan, known_tools: Collection[str] | None) -> None:
    """The plan after the changes, by the rules that a new one is held to; what has begun is taken as it is."""
    steps = list(PlanStep.objects.of(plan.pk))
    specs = [spec_of(step) for step in steps]
    begun = {step.key for step in steps if step.status != StepStatus.PENDING}
    checked = [replace(spec, tool_name="") if spec.key in begun and spec.kind != "data" else spec for spec in specs]
    resolved(
        goal=plan.goal,
        steps=checked,
        known_tools=known_tools,
        context=plan.context_json,
        max_steps=services.MAX_TEMPLATE_STEPS if plan.template else MAX_STEPS,
    )


def spec_of(step: PlanStep) -> StepSpec:
    """A stored step as the value it was made from."""
    return StepSpec(
        key=step.key,
        action=step.action,
        kind=step.kind,
        recipe=step.recipe,
        tool_name=step.tool_name,
        args=step.args_json,
        reads=tuple(step.reads),
        is_critical=step.is_critical,
        tier=step.tier,
    )


def _snapshot(step: PlanStep) -> dict[str, Any]:
    return {
        "key": step.key,
        "order": step.order,
        "kind": step.kind,
        "action": step.action,
        "recipe": step.recipe,
        "tool_name": step.tool_name,
        "args": step.args_json,
        "reads": list(step.reads),
        "is_critical": step.is_critical,
        "tier": step.tier,
    }


def _tell(change: Intervention[ExecutionPlan], written: Sequence[PlanChange]) -> None:
    change.record(
        EventName.PLAN_ADAPTED,
        plan_id=change.run.pk,
        changes=[{"op": one.action, "before": one.before, "after": one.after} for one in written],
        steps=services.step_lines(PlanStep.objects.of(change.run.pk)),
    )
