"""The API's tools: what the user may call, and calling it; a call is its own run (design § 8)."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from chat.api import KEY
from chat.api_approvals import approval_json
from chat.errors import FieldInvalid
from chat.http import ApiView, correlation_of, idempotent, user_of
from chat.models import IdempotencyKey
from chat.queries import workspace_for
from chat.serializers import ErrorOutput
from factory.executors import build_executor
from factory.identities import PLANNER
from prompt.types import Mode
from tools.approvals import policy_of
from tools.doors import CallResult, call_result, call_tool
from tools.executor import ToolExecutor
from tools.models import ToolCallRun
from tools.queries import call_for
from workspaces.errors import NotVisible
from workspaces.models import User, Workspace
from workspaces.permissions import may

MODES: tuple[Mode, ...] = ("conversation", "workflow")


class ToolCallInput(serializers.Serializer[Any]):
    """What a client may say about a call; who calls and what was approved it may not."""

    arguments = serializers.DictField(default=dict)
    workspace = serializers.CharField(required=False, default="", allow_blank=True, max_length=64)
    mode = serializers.ChoiceField(choices=MODES, default="workflow")


class Tools(ApiView):
    """The tools that the user may call in a workspace."""

    @extend_schema(
        operation_id="tools_list",
        parameters=[OpenApiParameter("workspace", str), OpenApiParameter("mode", str, enum=list(MODES))],
        responses={200: OpenApiTypes.OBJECT, 400: ErrorOutput, 404: ErrorOutput},
    )
    def get(self, request: Request) -> Response:
        user = user_of(request)
        mode = request.query_params.get("mode") or "workflow"
        if mode not in MODES:
            raise FieldInvalid(field="mode", problem=f"is one of {', '.join(MODES)}")
        workspace = _workspace(user, request.query_params.get("workspace", ""))
        executor = build_executor(PLANNER, mode=mode, workspace=workspace)
        return Response({"results": _offered(executor, user, workspace)})


class ToolCall(ApiView):
    """Call one tool: 200 with its envelope, 202 when a person has to approve it first."""

    @extend_schema(
        parameters=[KEY],
        request=ToolCallInput,
        responses={200: OpenApiTypes.OBJECT, 202: OpenApiTypes.OBJECT, 400: ErrorOutput, 404: ErrorOutput},
    )
    @idempotent
    def post(self, request: Request, name: str, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.target:  # made before, and its answer got lost
            return _answer(call_result(call_for(user, int(idempotency.target))))
        body = ToolCallInput(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        workspace = _workspace(user, given["workspace"])
        executor = build_executor(PLANNER, mode=given["mode"], workspace=workspace)
        if name not in executor.registry:
            raise NotVisible(tool=name)

        def remember(call: ToolCallRun) -> None:
            if idempotency is not None:
                IdempotencyKey.objects.filter(pk=idempotency.pk).update(target=str(call.pk))

        return _answer(
            call_tool(
                executor=executor,
                user=user,
                workspace=workspace,
                name=name,
                arguments=given["arguments"],
                door="rest",
                correlation_id=correlation_of(request),
                clock=timezone.now,
                remember=remember,
            )
        )


class ToolCallDetail(ApiView):
    """One call made at a door, and what became of it."""

    @extend_schema(responses={200: OpenApiTypes.OBJECT, 404: ErrorOutput})
    def get(self, request: Request, call_id: int) -> Response:
        return Response(_call_json(call_result(call_for(user_of(request), call_id))))


def _offered(executor: ToolExecutor, user: User, workspace: Workspace) -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "label": spec.label,
            "description": spec.description,
            "effect": spec.effect,
            "destructive": spec.destructive,
            "approval": policy_of(spec, executor.identity),
            "input_schema": spec.input_schema,
        }
        for spec in executor.registry
        if spec.name in executor.exposed_names()
        and (spec.permission is None or may(user, spec.permission, workspace=workspace))
    ]


def _answer(done: CallResult) -> Response:
    waits = done.envelope is None
    return Response(_call_json(done), status=status.HTTP_202_ACCEPTED if waits else status.HTTP_200_OK)


def _call_json(done: CallResult) -> dict[str, Any]:
    call = done.call
    return {
        "call_id": call.pk,
        "tool": call.tool_name,
        "status": call.status,
        "execution_id": done.execution.pk if done.execution is not None else None,
        "execution_status": done.execution.status if done.execution is not None else None,
        "approval": approval_json(done.approval) if done.approval is not None else None,
        "correlation_id": call.correlation_id,
        **(done.envelope or {"success": None, "result": None, "error": None}),
    }


def _workspace(user: User, wanted: str) -> Workspace:
    try:
        return workspace_for(user, wanted)
    except LookupError as exc:
        raise FieldInvalid(field="workspace", problem="say which: you belong to none or to several") from exc
