"""Writes: making a plan, and what its owner does to its steps.

What concerns steps runs while stream and plan are locked: in the closing of a unit, or in an intervention.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Min
from django.utils import timezone

from events.models import EventRecord, Stream
from events.ports import EventSink
from events.types import EventName
from plan import hot
from plan.creation import resolved, unholdable
from plan.errors import PlanInvalid, SynthesisQualityError
from plan.limits import failure
from plan.models import STEP_TERMINAL, ExecutionPlan, PlanStep, StepKind, StepMessage, StepStatus
from plan.templates import template
from plan.types import MAX_RESULT, MAX_STEPS, MAX_SYNTHESIS, StepSpec
from prompt.validate import validate
from tools.models import ToolExecution
from tools.ports import dispatcher
from tools.runs import RunStatus
from tools.services import withdraw_approvals
from tools.units import Arrow
from workspaces.models import User, Workspace

MAX_TEMPLATE_STEPS = 10_000


@dataclass(slots=True)
class Recorded:
    """An event sink for code that is in no unit: keeps the events until they are appended."""

    events: list[EventRecord] = field(default_factory=list)

    def record(self, name: EventName, **payload: Any) -> None:
        """Keep an event."""
        self.events.append(EventRecord(name=name, payload=payload))


def create_plan(
    *,
    goal: str,
    steps: Sequence[StepSpec],
    owner: User,
    workspace: Workspace,
    identity: str,
    conversation_id: UUID | None,
    turn_id: int | None,
    stream_id: UUID,
    correlation_id: str,
    events: EventSink,
    now: datetime,
    known_tools: Collection[str] | None = None,
) -> ExecutionPlan:
    """Hold a plan and its steps, and have a worker told once the caller's transaction has committed.

    Args:
        goal: what the plan is for, up to 4,000 characters.
        steps: 1 to 50; a step without `reads` reads the one before.
        owner: whose plan it is; its tools run as this user.
        identity: the name of the agent that runs its steps.
        stream_id: where its events go: the conversation's stream.
        events: the open unit.
        now: aware UTC time.
        known_tools: names that steps may use; None: not checked.

    Raises:
        PlanInvalid: the details list every fault; nothing was written.

    Source: CAP-044, CAP-050, CAP-062.
    """
    filled = resolved(goal=goal, steps=steps, known_tools=known_tools, context={}, max_steps=MAX_STEPS)
    plan = ExecutionPlan(
        goal=goal.strip(),
        owner=owner,
        workspace=workspace,
        identity=identity,
        conversation_id=conversation_id,
        turn_id=turn_id,
        stream_id=stream_id,
        correlation_id=correlation_id,
        status=RunStatus.PENDING,
        created_at=now,
    )
    hold(plan, filled, events=events)
    dispatcher().dispatch_after_commit(plan)
    return plan


@transaction.atomic
def from_template(
    template_id: str,
    context: Mapping[str, Any],
    *,
    owner: User,
    workspace: Workspace,
    identity: str,
    correlation_id: str,
    now: datetime,
    known_tools: Collection[str] | None = None,
    subject: Any = None,
    budget_usd: Decimal | None = None,
    budget_tokens: int | None = None,
    deadline: datetime | None = None,
) -> ExecutionPlan:
    """Hold a plan made from a registered template, on a stream of its own. The caller has it dispatched.

    Args:
        template_id: what a domain app registered.
        context: plain JSON that the steps' `{"$from": "context.…"}` and the goal refer to.
        subject: a saved domain row the plan is about; None: none.
        budget_usd, budget_tokens: what its model calls may cost in all; None: no limit.
        deadline: aware UTC time after which the plan fails; None: none.

    Raises:
        UnknownTemplate: no such template.
        PlanInvalid: the context lacks a key or is no plain JSON, or the steps do not fit; nothing was written.
        InputInvalid: a validator of the template refused the context; nothing was written, no model was called.

    Source: CAP-023, CAP-050, CAP-053.
    """
    known = template(template_id)
    missing = sorted(known.requires - set(context))
    if missing:
        raise PlanInvalid(problems=[f"context: {key!r} is missing" for key in missing])
    context = dict(context)
    if faults := list(unholdable(context)):
        raise PlanInvalid(problems=[f"context: {at!r} {problem}" for at, problem in faults])
    validate(known.validators, context)
    try:
        goal = known.goal.format_map(context)
    except KeyError as exc:
        raise PlanInvalid(problems=[f"context: {exc.args[0]!r} is missing"]) from None
    except (ValueError, TypeError, LookupError, AttributeError) as exc:
        raise PlanInvalid(problems=[f"goal: the context does not fit into {known.goal!r}: {exc}"]) from None
    filled = resolved(
        goal=goal, steps=known.steps, known_tools=known_tools, context=context, max_steps=MAX_TEMPLATE_STEPS
    )
    stream = Stream.objects.create(workspace=workspace)
    plan = ExecutionPlan(
        goal=goal,
        context_json=context,
        template=template_id,
        owner=owner,
        workspace=workspace,
        identity=identity,
        stream=stream,
        correlation_id=correlation_id,
        status=RunStatus.PENDING,
        budget_usd=budget_usd,
        budget_tokens=budget_tokens,
        deadline=deadline,
        adaptable=known.adaptable,
        adapt_permission=known.adapt_permission,
        created_at=now,
    )
    if subject is not None:
        plan.subject = subject
    sink = Recorded()
    hold(plan, filled, events=sink)
    Stream.objects.append(stream.pk, sink.events, correlation_id=correlation_id)
    return plan


def hold(plan: ExecutionPlan, steps: Sequence[StepSpec], *, events: EventSink) -> None:
    """Write a checked plan and its steps, and record `plan_created`."""
    rows = [step_row(plan, spec, order) for order, spec in enumerate(steps, start=1)]
    hot.insert_plan(plan, rows)
    record_created(plan, rows, events=events)


def record_created(plan: ExecutionPlan, rows: Sequence[PlanStep], *, events: EventSink) -> None:
    """Record `plan_created` with every step as it stands."""
    events.record(
        EventName.PLAN_CREATED,
        plan_id=plan.pk,
        turn_id=plan.turn_id,
        goal=plan.goal,
        steps=step_lines(rows),
    )


def step_lines(rows: Iterable[PlanStep]) -> list[dict[str, Any]]:
    """Steps as an event lists them."""
    return [
        {
            "run": f"step:{row.pk}",
            "key": row.key,
            "order": row.order,
            "action": row.action,
            "kind": row.kind,
            "status": str(row.status),
        }
        for row in rows
    ]


def step_row(plan: ExecutionPlan, spec: StepSpec, order: int) -> PlanStep:
    """An unsaved row of one checked step."""
    return PlanStep(
        plan=plan,
        key=spec.key,
        order=order,
        kind=spec.kind,
        action=spec.action.strip(),
        recipe=spec.recipe,
        tool_name=spec.tool_name,
        args_json=dict(spec.args),
        reads=list(spec.reads or ()),
        is_critical=spec.is_critical,
        tier=spec.tier,
        status=StepStatus.PENDING,
    )


def start_step(*, step: PlanStep, events: EventSink) -> bool:
    """Start a step that is ready; whether it was still pending."""
    if not PlanStep.objects.start(step.pk):
        return False
    step.status = StepStatus.RUNNING
    record_step(step, events=events)
    return True


def complete_step(
    *,
    step: PlanStep,
    result: Any,
    synthesis: str,
    events: EventSink,
    model_used: str = "",
    stop_reason: str = "",
    outcome: Mapping[str, Any] | None = None,
) -> None:
    """Keep what a step produced; the steps that read it become ready by that alone.

    Args:
        step: the running step that ended.
        result: plain JSON, up to 256 KiB; a larger one is kept as a note that says so.
        synthesis: what later LLM steps are told, up to 8,000 characters; empty only for a data step.
        outcome: `assessment`, `satisfaction` (1 – 5) and `suggestion` of an assessment step (CAP-080).

    Raises:
        SynthesisQualityError: an LLM step's synthesis is missing, or no model round of this step produced it; nothing
            was written.

    Source: CAP-051, CAP-054, CAP-080.
    """
    if step.kind != StepKind.DATA:
        _check_synthesis(step, synthesis)
    columns: dict[str, Any] = {"model_used": model_used, "stop_reason": stop_reason}
    if outcome is not None:
        columns.update(
            outcome_assessment=str(outcome.get("assessment", "")),
            outcome_satisfaction=outcome.get("satisfaction"),
            improvement_suggestion=str(outcome.get("suggestion", "")),
        )
    if PlanStep.objects.complete(step.pk, result=_within_limit(result), synthesis=synthesis, **columns):
        step.status = StepStatus.COMPLETED
        record_step(step, events=events, synthesis=synthesis)


def fail_step(*, step: PlanStep, error: str, events: EventSink, **columns: Any) -> None:
    """End a step that cannot go on; a critical one fails its plan at the next `settle`."""
    if PlanStep.objects.fail(step.pk, error=error, **columns):
        ToolExecution.objects.lose_open("step", [step.pk])
        step.status = StepStatus.FAILED
        record_step(step, events=events, error=error)


def clipped(text: str) -> str:
    """A synthesis within its limit; the model's text without the blanks around it."""
    return text.strip()[:MAX_SYNTHESIS].rstrip()


def record_step(step: PlanStep, *, events: EventSink, **more: Any) -> None:
    """Record `plan_step` with the step's status as it is now."""
    events.record(EventName.PLAN_STEP, **step_payload(step, **more))


def step_payload(step: PlanStep, **more: Any) -> dict[str, Any]:
    """What a `plan_step` event says."""
    return {
        "run": f"step:{step.pk}",
        "plan_id": step.plan_id,
        "step": step.key,
        "order": step.order,
        "action": step.action,
        "kind": step.kind,
        "status": str(step.status),
        **{name: value for name, value in more.items() if value},
    }


@dataclass(slots=True)
class Settled:
    """What the owner does next: leave by `arrow`, or keep the plan and run `started`."""

    arrow: Arrow | None = None
    started: list[PlanStep] = field(default_factory=list)


def settle(*, plan_id: int, events: EventSink, slots: int) -> Settled:
    """Decide how a running plan goes on, under the locks of stream and plan, from rows read now.

    Starts ready steps, or ends the plan, or parks it, or hands it back when steps are ready that may not start here.
    Every path to `failed` records `plan_failed` (PRF-SC01-07).

    Args:
        events: the open unit.
        slots: how many steps may run at once, those that run already included; 0 when the owner is leaving.
    """
    plan = ExecutionPlan.objects.get(pk=plan_id)
    if plan.cancel_requested_at is not None:
        return Settled(cancelled(plan, events=events))
    reason = failure(plan)
    if reason is not None:
        step_key, error = reason
        return Settled(failed(plan, error=error, step=step_key, events=events))
    steps = PlanStep.objects.of(plan_id)
    counted = steps.order_by().values("status").annotate(due=Min("not_before"), many=Count("pk"))
    rows = {row["status"]: row for row in counted}
    running = rows[StepStatus.RUNNING]["many"] if StepStatus.RUNNING in rows else 0
    free = max(slots - running, 0)
    ready = [steps.get(pk=pk) for pk in PlanStep.objects.next_ready(plan_id, limit=max(free, 1))]
    started = [step for step in ready[:free] if start_step(step=step, events=events)]
    if started or running:
        return Settled(None, started)
    if ready:
        dispatcher().dispatch_after_commit(ExecutionPlan, plan_id)
        return Settled(Arrow(RunStatus.PENDING))
    if StepStatus.WAITING_RETRY in rows:
        return Settled(Arrow(RunStatus.WAITING_RETRY, {"not_before": rows[StepStatus.WAITING_RETRY]["due"]}))
    if StepStatus.WAITING_APPROVAL in rows:
        return Settled(Arrow(RunStatus.WAITING_APPROVAL))
    if StepStatus.PENDING in rows:
        return Settled(failed(plan, error="its pending steps read steps that cannot end", step="", events=events))
    events.record(EventName.PLAN_COMPLETED, plan_id=plan_id, result=result_text(plan_id))
    return Settled(Arrow(RunStatus.COMPLETED))


def failed(plan: ExecutionPlan, *, error: str, step: str, events: EventSink) -> Arrow:
    """The arrow to `failed`, its event recorded, the unended steps skipped and their approvals withdrawn."""
    _end_rest(plan.pk, events)
    events.record(EventName.PLAN_FAILED, plan_id=plan.pk, error=error, step=step)
    return Arrow(RunStatus.FAILED, {"error": f"step {step}: {error}" if step else error})


def cancelled(plan: ExecutionPlan, *, events: EventSink) -> Arrow:
    """The arrow to `cancelled`, its event recorded, the unended steps skipped and their approvals withdrawn."""
    _end_rest(plan.pk, events)
    events.record(EventName.PLAN_CANCELLED, plan_id=plan.pk)
    return Arrow(RunStatus.CANCELLED)


def result_text(plan_id: int) -> str:
    """What a completed plan has to say: the last synthesis, or the last result when no step had one."""
    done = PlanStep.objects.filter(plan_id=plan_id, status=StepStatus.COMPLETED).order_by("-order")
    synthesis = done.exclude(llm_synthesis="").values_list("llm_synthesis", flat=True).first()
    if synthesis is not None:
        return synthesis
    result = done.values_list("result_json", flat=True).first()
    return json.dumps(result, ensure_ascii=False)[:MAX_SYNTHESIS]


def _end_rest(plan_id: int, events: EventSink) -> None:
    unended = PlanStep.objects.filter(plan_id=plan_id).exclude(status__in=STEP_TERMINAL)
    keys = list(unended.values_list("pk", flat=True))
    withdraw_approvals(owner_kind="step", owner_ids=keys, now=timezone.now(), events=events)
    ToolExecution.objects.lose_open("step", keys)
    PlanStep.objects.skip_rest(plan_id)


def _check_synthesis(step: PlanStep, synthesis: str) -> None:
    last = (
        StepMessage.objects.filter(step_id=step.pk, role="assistant")
        .order_by("-round")
        .values_list("text", flat=True)
        .first()
    )
    if not synthesis or last is None or clipped(last) != clipped(synthesis):
        raise SynthesisQualityError(step=step.key, synthesis=bool(synthesis), rounds=last is not None)


def _within_limit(result: Any) -> Any:
    size = len(json.dumps(result, ensure_ascii=False).encode())
    return result if size <= MAX_RESULT else {"truncated": True, "bytes": size}
