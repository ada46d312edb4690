"""The API's approvals: what waits for a person, and deciding it (CAP-033)."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from chat.api import KEY, LIMIT, OFFSET
from chat.errors import FieldInvalid
from chat.http import ApiView, idempotent, page, user_of
from chat.models import IdempotencyKey
from chat.serializers import DecisionInput, ErrorOutput
from tools.approvals import card
from tools.models import Approval, ApprovalStatus
from tools.queries import approval_for, approvals_for
from tools.services import decide


class Approvals(ApiView):
    """The approvals that the user may see, the latest first."""

    @extend_schema(
        operation_id="approvals_list",
        parameters=[OpenApiParameter("status", str, enum=list(ApprovalStatus.values)), LIMIT, OFFSET],
        responses={200: OpenApiTypes.OBJECT, 400: ErrorOutput},
    )
    def get(self, request: Request) -> Response:
        wanted = request.query_params.get("status") or None
        if wanted is not None and wanted not in ApprovalStatus.values:
            raise FieldInvalid(field="status", problem=f"is one of {', '.join(ApprovalStatus.values)}")
        return page(request, approvals_for(user_of(request), status=wanted).order_by("-pk"), approval_json)


class ApprovalDetail(ApiView):
    """One approval."""

    @extend_schema(responses={200: OpenApiTypes.OBJECT, 404: ErrorOutput})
    def get(self, request: Request, approval_id: int) -> Response:
        return Response(approval_json(approval_for(user_of(request), approval_id)))


class ApprovalDecide(ApiView):
    """Approve or reject; the call then runs in a worker, with the stored or the edited arguments."""

    @extend_schema(
        parameters=[KEY],
        request=DecisionInput,
        responses={
            200: OpenApiTypes.OBJECT,
            400: ErrorOutput,
            403: ErrorOutput,
            404: ErrorOutput,
            409: ErrorOutput,
        },
    )
    @idempotent
    def post(self, request: Request, approval_id: int, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.used:  # a second decision would be a conflict
            return Response(approval_json(approval_for(user, approval_id)))
        body = DecisionInput(data=request.data)
        body.is_valid(raise_exception=True)
        decided = decide(approval_id=approval_id, user=user, now=timezone.now(), **body.validated_data)
        return Response(approval_json(decided))


def approval_json(approval: Approval) -> dict[str, Any]:
    """An approval as its card says, and where it belongs."""
    return {
        "id": approval.pk,
        **card(approval),
        "workspace": approval.workspace_id,
        "conversation": approval.conversation_id,
        "correlation_id": approval.correlation_id,
        "created_at": approval.created_at,
        "decided_at": approval.decided_at,
    }
