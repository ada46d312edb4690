"""The API's ways to look at a plan's shape and to change it while it lives (CAP-055, CAP-080)."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from chat import idempotency as keys
from chat.api import KEY
from chat.api_runs import own_plan
from chat.http import ApiView, idempotent, user_of
from chat.models import IdempotencyKey
from chat.serializers import ErrorOutput
from plan import steering
from plan.adapting import adapt_plan, may_adapt
from plan.models import PlanStep, StepKind
from plan.queries import graph, plan_detail, step_detail, visible_plan
from plan.types import StepChange
from tools.toolset import tools_of
from workspaces.errors import NotVisible

FIELDS = ("action", "kind", "recipe", "tool_name", "args", "reads", "is_critical", "tier")


class StepChangeInput(serializers.Serializer[Any]):
    op = serializers.ChoiceField(choices=["insert", "remove", "update", "reorder"])
    key = serializers.CharField(required=False, max_length=64, default="")
    after = serializers.CharField(required=False, allow_null=True, max_length=64, default=None)
    action = serializers.CharField(required=False, max_length=4_000)
    kind = serializers.ChoiceField(required=False, choices=StepKind.values)
    recipe = serializers.CharField(required=False, allow_blank=True, max_length=64)
    tool_name = serializers.CharField(required=False, allow_blank=True, max_length=128)
    args = serializers.DictField(required=False)
    reads = serializers.ListField(required=False, child=serializers.CharField(max_length=64), max_length=50)
    is_critical = serializers.BooleanField(required=False)
    tier = serializers.ChoiceField(required=False, allow_blank=True, choices=["planning", "execution", "field"])
    keys = serializers.ListField(required=False, child=serializers.CharField(max_length=64), default=list)


class AdaptInput(serializers.Serializer[Any]):
    changes = serializers.ListField(child=StepChangeInput(), allow_empty=False, max_length=50)


class ForkInput(serializers.Serializer[Any]):
    step = serializers.CharField(max_length=64, help_text="The first step that runs again.")
    from_scratch = serializers.BooleanField(
        required=False, default=False, help_text="Leave the journals of the steps that run again behind."
    )


class AssessmentInput(serializers.Serializer[Any]):
    satisfaction = serializers.IntegerField(required=False, allow_null=True, default=None, min_value=1, max_value=5)
    assessment = serializers.CharField(required=False, allow_blank=True, default="", max_length=4_000)
    suggestion = serializers.CharField(required=False, allow_blank=True, default="", max_length=4_000)


class PlanGraph(ApiView):
    """A plan's steps as nodes with their place, and their reads as edges."""

    @extend_schema(responses={200: OpenApiTypes.OBJECT, 404: ErrorOutput})
    def get(self, request: Request, plan_id: int) -> Response:
        return Response(graph(visible_plan(user_of(request), plan_id)))


class PlanAdapt(ApiView):
    """Change steps that have not begun; all of the changes, or none."""

    @extend_schema(
        parameters=[KEY],
        request=AdaptInput,
        responses={200: OpenApiTypes.OBJECT, 400: ErrorOutput, 404: ErrorOutput, 409: ErrorOutput},
    )
    @idempotent
    def post(self, request: Request, plan_id: int, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.target:  # done before, and its answer got lost
            return Response(plan_detail(visible_plan(user, plan_id)))
        body = AdaptInput(data=request.data)
        body.is_valid(raise_exception=True)
        plan = visible_plan(user, plan_id)
        if plan.owner_id != user.pk and not may_adapt(plan, user):
            raise NotVisible(plan=plan_id)
        with transaction.atomic():
            adapt_plan(
                plan_id=plan_id,
                changes=[
                    StepChange(
                        op=one["op"],
                        key=one["key"],
                        after=one["after"],
                        fields={name: one[name] for name in FIELDS if name in one},
                        keys=tuple(one["keys"]),
                    )
                    for one in body.validated_data["changes"]
                ],
                by=user,
                known_tools=tools_of(plan.workspace).names(),
            )
            keys.made(idempotency, plan_id)
        return Response(plan_detail(visible_plan(user, plan_id)))


class PlanFork(ApiView):
    """A new plan from one step of an ended one; from scratch, the answer lists what those steps wrote before."""

    @extend_schema(
        parameters=[KEY], request=ForkInput, responses={202: OpenApiTypes.OBJECT, 404: ErrorOutput, 409: ErrorOutput}
    )
    @idempotent
    def post(self, request: Request, plan_id: int, *, idempotency: IdempotencyKey | None) -> Response:
        body = ForkInput(data=request.data)
        body.is_valid(raise_exception=True)
        user, wanted = user_of(request), body.validated_data
        own_plan(user, plan_id)
        if idempotency is not None and idempotency.target:  # made before, and its answer got lost
            made = visible_plan(user, int(idempotency.target))
        else:
            with transaction.atomic():
                made = steering.fork_plan(
                    plan_id=plan_id,
                    by=user,
                    now=timezone.now(),
                    from_key=wanted["step"],
                    from_scratch=wanted["from_scratch"],
                )
                keys.made(idempotency, made.pk)
        written = steering.written_from(plan_id=plan_id, key=wanted["step"]) if wanted["from_scratch"] else []
        return Response({**plan_detail(made), "written_before": written}, status=status.HTTP_202_ACCEPTED)


class StepAssess(ApiView):
    """What a person thinks of a step that has ended."""

    @extend_schema(
        parameters=[KEY],
        request=AssessmentInput,
        responses={200: OpenApiTypes.OBJECT, 400: ErrorOutput, 404: ErrorOutput, 409: ErrorOutput},
    )
    @idempotent
    def post(self, request: Request, plan_id: int, key: str, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        visible_plan(user, plan_id)
        if idempotency is not None and idempotency.used:  # somebody may have said more since
            return Response(step_detail(PlanStep.objects.get(plan_id=plan_id, key=key)))
        body = AssessmentInput(data=request.data)
        body.is_valid(raise_exception=True)
        return Response(step_detail(steering.assess_step(plan_id=plan_id, key=key, by=user, **body.validated_data)))
