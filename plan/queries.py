"""Reads: plans as their user may see them, as plain JSON."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.db.models import Q

from events.models import Event
from events.types import EventName
from plan.models import ExecutionPlan, ExecutionPlanQuerySet, PlanStep, StepStatus
from tools.queries import decides_about
from workspaces.errors import NotVisible
from workspaces.models import User
from workspaces.permissions import VIEW_ALL, workspaces_where

WAITING = (StepStatus.WAITING_RETRY, StepStatus.WAITING_APPROVAL)


def visible_plans(user: User) -> ExecutionPlanQuerySet:
    """The plans of `user`, those whose calls he decides, and all of workspaces where he may view all; newest first."""
    if not user.is_active:
        return ExecutionPlan.objects.none()
    everything = workspaces_where(user, VIEW_ALL)
    decided = decides_about(user).exclude(plan_id=None).values("plan_id")
    mine = Q(owner=user) | Q(workspace__in=everything) | Q(pk__in=decided)
    return ExecutionPlan.objects.visible_to(user).filter(mine).order_by("-pk")


def visible_plan(user: User, plan_id: int) -> ExecutionPlan:
    """One plan that `user` may see.

    Raises:
        NotVisible: there is none of that id for him.
    """
    plan = visible_plans(user).filter(pk=plan_id).first()
    if plan is None:
        raise NotVisible(plan=plan_id)
    return plan


def plan_summary(plan: ExecutionPlan) -> dict[str, Any]:
    """A plan without its steps, for lists."""
    return {
        "id": plan.pk,
        "workspace": plan.workspace_id,
        "status": plan.status,
        "goal": plan.goal,
        "template": plan.template,
        "conversation": str(plan.conversation_id) if plan.conversation_id else None,
        "turn": plan.turn_id,
        "retry_of": plan.retry_of_id,
        "correlation_id": plan.correlation_id,
        "error": plan.error,
        "not_before": plan.not_before,
        "cancel_requested": plan.cancel_requested_at is not None,
        "created_at": plan.created_at,
        "started_at": plan.started_at,
        "ended_at": plan.ended_at,
    }


def plan_detail(plan: ExecutionPlan) -> dict[str, Any]:
    """A plan with its board and its steps, in two queries."""
    steps = [step_detail(step) for step in PlanStep.objects.of(plan.pk)]
    return {**plan_summary(plan), "board": plan.board, "steps": steps}


def step_detail(step: PlanStep) -> dict[str, Any]:
    """One step as the API shows it."""
    return {
        "key": step.key,
        "order": step.order,
        "kind": step.kind,
        "action": step.action,
        "tool_name": step.tool_name,
        "recipe": step.recipe,
        "is_critical": step.is_critical,
        "status": step.status,
        "reads": step.reads,
        "llm_synthesis": step.llm_synthesis,
        "result": step.result_json,
        "error": step.error,
        "model_used": step.model_used,
        "stop_reason": step.stop_reason,
        "not_before": step.not_before,
        "outcome": {
            "assessment": step.outcome_assessment,
            "satisfaction": step.outcome_satisfaction,
            "suggestion": step.improvement_suggestion,
        }
        if step.outcome_satisfaction is not None or step.outcome_assessment
        else None,
        "started_at": step.started_at,
        "ended_at": step.ended_at,
    }


def graph(plan: ExecutionPlan) -> dict[str, Any]:
    """A plan's steps as nodes with their place and times, and their reads as edges.

    A node's `layer` is one more than that of the farthest step it reads, `row` its place within the layer: steps of one
    layer may run side by side. `waits` are the times in which it waited for a retry or a person; `until` is None while
    it does.
    """
    steps = list(PlanStep.objects.of(plan.pk))
    waits = _waits(plan)
    layers: dict[str, int] = {}
    rows: dict[int, int] = {}
    nodes = []
    for step in steps:
        layer = max((layers[key] + 1 for key in step.reads if key in layers), default=0)
        layers[step.key] = layer
        rows[layer] = rows.get(layer, -1) + 1
        nodes.append(
            {
                "key": step.key,
                "action": step.action,
                "kind": step.kind,
                "tool_name": step.tool_name,
                "is_critical": step.is_critical,
                "status": step.status,
                "order": step.order,
                "layer": layer,
                "row": rows[layer],
                "error": step.error if step.status != StepStatus.COMPLETED else "",
                "not_before": step.not_before,
                "started_at": step.started_at,
                "ended_at": step.ended_at,
                "waits": waits.get(step.key, []),
            }
        )
    edges = [{"from": key, "to": step.key} for step in steps for key in step.reads if key in layers]
    return {
        "plan_id": plan.pk,
        "status": plan.status,
        "created_at": plan.created_at,
        "started_at": plan.started_at,
        "ended_at": plan.ended_at,
        "nodes": nodes,
        "edges": edges,
    }


def _waits(plan: ExecutionPlan) -> dict[str, list[dict[str, Any]]]:
    """When each step waited, from what its stream tells: from the event that says so to the step's next one.

    Of a long conversation only what was said since the plan was made is read.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            # CASE: taken to be true of every other event, so that PostgreSQL begins at the end of the stream
            f"""WITH made AS MATERIALIZED (
                    SELECT seq FROM {Event._meta.db_table}
                    WHERE stream_id = %(stream)s AND CASE WHEN name = %(made)s
                        THEN payload -> 'plan_id' = to_jsonb(%(plan)s::bigint) ELSE false END
                    ORDER BY seq DESC LIMIT 1),
                moves AS (
                    SELECT seq, payload ->> 'step' AS step, payload ->> 'status' AS status, created_at,
                        lead(created_at) OVER (PARTITION BY payload ->> 'step' ORDER BY seq) AS next_at
                    FROM {Event._meta.db_table}
                    WHERE stream_id = %(stream)s AND seq > COALESCE((SELECT seq FROM made), 0) AND name = %(moved)s
                        AND payload -> 'plan_id' = to_jsonb(%(plan)s::bigint))
                SELECT step, status, created_at, next_at FROM moves WHERE status = ANY(%(waiting)s) ORDER BY seq""",  # noqa: S608
            {
                "stream": plan.stream_id,
                "plan": plan.pk,
                "made": EventName.PLAN_CREATED.value,
                "moved": EventName.PLAN_STEP.value,
                "waiting": [status.value for status in WAITING],
            },
        )
        found: dict[str, list[dict[str, Any]]] = {}
        for step, status, since, until in cursor.fetchall():
            found.setdefault(step, []).append({"status": status, "since": since, "until": until or plan.ended_at})
    return found
