"""The API's plans and traces (design § 8)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from chat import idempotency as keys
from chat.api import KEY, LIMIT, OFFSET
from chat.errors import FieldInvalid
from chat.http import ApiView, idempotent, page, user_of
from chat.models import IdempotencyKey
from chat.numbers import whole_number
from chat.serializers import ErrorOutput
from observability.models import AgentInteraction
from plan import steering
from plan.queries import plan_detail, plan_summary, visible_plan, visible_plans
from tools.models import ToolExecution
from tools.queries import decided_runs
from workspaces.errors import NotVisible
from workspaces.models import Membership, User
from workspaces.permissions import VIEW_ALL, workspaces_where

TRACE_FILTERS = [
    OpenApiParameter("correlation_id", str),
    OpenApiParameter("conversation", OpenApiTypes.UUID),
    OpenApiParameter("plan", int),
    LIMIT,
    OFFSET,
]


class Plans(ApiView):
    """The user's plans, the newest first."""

    @extend_schema(
        operation_id="plans_list",
        parameters=[
            OpenApiParameter("status", str),
            OpenApiParameter("conversation", OpenApiTypes.UUID),
            LIMIT,
            OFFSET,
        ],
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, request: Request) -> Response:
        plans = visible_plans(user_of(request))
        wanted = request.query_params.get("status")
        if wanted:
            plans = plans.filter(status=wanted)
        conversation = _uuid(request, "conversation")
        if conversation is not None:
            plans = plans.filter(conversation_id=conversation)
        return page(request, plans, plan_summary)


class PlanDetail(ApiView):
    """One plan with its steps."""

    @extend_schema(responses={200: OpenApiTypes.OBJECT, 404: ErrorOutput})
    def get(self, request: Request, plan_id: int) -> Response:
        return Response(plan_detail(visible_plan(user_of(request), plan_id)))


class PlanCancel(ApiView):
    """Stop a plan: 202 while its owner still has to end it, 200 when it has ended."""

    @extend_schema(
        parameters=[KEY], request=None, responses={200: OpenApiTypes.OBJECT, 202: OpenApiTypes.OBJECT, 404: ErrorOutput}
    )
    @idempotent
    def post(self, request: Request, plan_id: int, *, idempotency: IdempotencyKey | None) -> Response:
        del idempotency  # cancelling twice is cancelling once
        user = user_of(request)
        own_plan(user, plan_id)
        cancelled = steering.cancel_plan(plan_id=plan_id)
        code = status.HTTP_200_OK if cancelled.ended else status.HTTP_202_ACCEPTED
        return Response(plan_detail(visible_plan(user, plan_id)), status=code)


class PlanRetry(ApiView):
    """Fork a new plan from the failed step of a failed or cancelled one."""

    @extend_schema(
        parameters=[KEY], request=None, responses={202: OpenApiTypes.OBJECT, 404: ErrorOutput, 409: ErrorOutput}
    )
    @idempotent
    def post(self, request: Request, plan_id: int, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.target:  # made before, and its answer got lost
            made = visible_plan(user, int(idempotency.target))
        else:
            own_plan(user, plan_id)
            with transaction.atomic():
                made = steering.retry_plan(plan_id=plan_id, by=user, now=timezone.now())
                keys.made(idempotency, made.pk)
        return Response(plan_detail(made), status=status.HTTP_202_ACCEPTED)


class Interactions(ApiView):
    """Model calls of the user's runs, the latest first."""

    @extend_schema(operation_id="interactions_list", parameters=TRACE_FILTERS, responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request) -> Response:
        return page(request, _traced(request, AgentInteraction.objects.all()), _interaction_json)


class ToolExecutions(ApiView):
    """Tool calls of the user's runs, the latest first."""

    @extend_schema(operation_id="tool_executions_list", parameters=TRACE_FILTERS, responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request) -> Response:
        return page(request, _traced(request, ToolExecution.objects.all()), _execution_json)


class ToolExecutionDetail(ApiView):
    """One tool call."""

    @extend_schema(responses={200: OpenApiTypes.OBJECT, 404: ErrorOutput})
    def get(self, request: Request, execution_id: int) -> Response:
        found = _visible(user_of(request), ToolExecution.objects.all()).filter(pk=execution_id).first()
        if found is None:
            raise NotVisible(tool_execution=execution_id)
        return Response({**_execution_json(found), "result": found.value()})


def own_plan(user: User, plan_id: int) -> None:
    """Only its owner steers a plan; to somebody who may merely see it, it cannot be steered."""
    if visible_plan(user, plan_id).owner_id != user.pk:
        raise NotVisible(plan=plan_id)


def _visible(user: User, rows: QuerySet[Any]) -> QuerySet[Any]:
    mine = list(Membership.objects.filter(user=user, user__is_active=True).values_list("workspace_id", flat=True))
    everything = workspaces_where(user, VIEW_ALL)
    own = Q(workspace__in=mine, user=user)
    return rows.filter(own | Q(workspace__in=everything) | decided_runs(user)).order_by("-pk")


def _traced(request: Request, rows: QuerySet[Any]) -> QuerySet[Any]:
    found = _visible(user_of(request), rows)
    correlation = request.query_params.get("correlation_id")
    if correlation:
        found = found.filter(correlation_id=correlation)
    conversation = _uuid(request, "conversation")
    if conversation is not None:
        found = found.filter(conversation_id=conversation)
    plan = request.query_params.get("plan")
    if plan is not None:
        number = whole_number(plan)
        if number is None:
            raise FieldInvalid(field="plan", problem="takes a plan's number")
        found = found.filter(plan_id=number)
    return found


def _uuid(request: Request, name: str) -> UUID | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise FieldInvalid(field=name, problem="takes a UUID") from None


INTERACTION_FIELDS = (
    "id",
    "owner_kind",
    "owner_id",
    "plan_id",
    "round",
    "provider",
    "model",
    "tier",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "latency_ms",
    "first_token_ms",
    "price_source",
    "stop_reason",
    "error_code",
    "committed",
    "correlation_id",
    "created_at",
)
EXECUTION_FIELDS = (
    "id",
    "owner_kind",
    "owner_id",
    "plan_id",
    "round",
    "position",
    "tool_name",
    "effect",
    "mode",
    "arguments",
    "status",
    "result",
    "error",
    "duration_ms",
    "cached",
    "correlation_id",
    "created_at",
    "ended_at",
)


def _interaction_json(row: AgentInteraction) -> dict[str, Any]:
    cost = row.estimated_cost
    return {
        **{name: getattr(row, name) for name in INTERACTION_FIELDS},
        "workspace": row.workspace_id,
        "conversation": row.conversation_id,
        "estimated_cost_usd": None if cost is None else str(cost),
    }


def _execution_json(row: ToolExecution) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in EXECUTION_FIELDS},
        "workspace": row.workspace_id,
        "conversation": row.conversation_id,
    }
