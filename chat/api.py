"""The API's conversations, messages and turns (design § 8)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from chat import queries, services
from chat.errors import FieldInvalid
from chat.http import ApiView, correlation_of, idempotent, page, user_of, wants_async
from chat.models import IdempotencyKey, Turn
from chat.runner import Agents, run_turn
from chat.serializers import (
    BranchInput,
    ConversationInput,
    ConversationOutput,
    ConversationPatch,
    ErrorOutput,
    MessageInput,
    MessageOutput,
    TurnOutput,
    conversation_json,
    message_json,
    turn_json,
)
from observability.crashpoints import crash_point

KEY = OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER, description="Makes a repeated POST harmless.")
PREFER = OpenApiParameter("Prefer", str, OpenApiParameter.HEADER, description="`respond-async`: a worker answers.")
LIMIT = OpenApiParameter("limit", int, description="1 to 200, default 50.")
OFFSET = OpenApiParameter("offset", int)


def agents() -> Agents:
    """What builds the agents of this server: `factory.agents.create_agent`, or what `CAPSTAN_AGENTS` names."""
    built: Agents = import_string(getattr(settings, "CAPSTAN_AGENTS", "factory.agents.create_agent"))
    return built


class Conversations(ApiView):
    """The signed-in user's conversations."""

    @extend_schema(parameters=[LIMIT, OFFSET], responses={200: ConversationOutput(many=True)})
    def get(self, request: Request) -> Response:
        return page(request, queries.conversations_of(user_of(request)), conversation_json)

    @extend_schema(
        parameters=[KEY],
        request=ConversationInput,
        responses={201: ConversationOutput, 400: ErrorOutput, 404: ErrorOutput, 422: ErrorOutput},
    )
    @idempotent
    def post(self, request: Request, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.target:
            made = queries.own_conversation(user, UUID(idempotency.target))
            return Response(conversation_json(made), status=status.HTTP_201_CREATED)
        body = ConversationInput(data=request.data)
        body.is_valid(raise_exception=True)
        given = dict(body.validated_data)
        try:
            workspace = queries.workspace_for(user, given.pop("workspace", None))
        except LookupError as exc:
            problem = "name one of your workspaces" if str(exc) == "several" else "you belong to no workspace"
            raise FieldInvalid(field="workspace", problem=problem) from None
        made = services.create_conversation(
            user=user, workspace=workspace, now=timezone.now(), idempotency=idempotency, **given
        )
        return Response(conversation_json(made), status=status.HTTP_201_CREATED)


class ConversationDetail(ApiView):
    """One conversation."""

    @extend_schema(responses={200: ConversationOutput, 404: ErrorOutput})
    def get(self, request: Request, conversation_id: UUID) -> Response:
        conversation = queries.conversation_for(user_of(request), conversation_id)
        busy = queries.active_turn(conversation.pk)
        return Response({**conversation_json(conversation), "active_turn": turn_json(busy) if busy else None})

    @extend_schema(request=ConversationPatch, responses={200: ConversationOutput, 400: ErrorOutput, 404: ErrorOutput})
    def patch(self, request: Request, conversation_id: UUID) -> Response:
        queries.own_conversation(user_of(request), conversation_id)
        body = ConversationPatch(data=request.data)
        body.is_valid(raise_exception=True)
        renamed = services.rename_conversation(
            conversation_id=conversation_id, user=user_of(request), now=timezone.now(), **body.validated_data
        )
        return Response(conversation_json(renamed))

    @extend_schema(responses={204: None, 404: ErrorOutput, 409: ErrorOutput})
    def delete(self, request: Request, conversation_id: UUID) -> Response:
        services.delete_conversation(conversation_id=conversation_id, user=user_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class Messages(ApiView):
    """The transcript of a conversation's active branch, and sending a message."""

    @extend_schema(responses={200: MessageOutput(many=True), 404: ErrorOutput})
    def get(self, request: Request, conversation_id: UUID) -> Response:
        conversation = queries.conversation_for(user_of(request), conversation_id)
        rows = [row for row in queries.transcript_of(conversation) if row.role != "note"]
        siblings = queries.siblings_of(rows)
        return Response({"results": [message_json(row, siblings.get(row.pk, [row.pk])) for row in rows]})

    @extend_schema(
        parameters=[KEY, PREFER],
        request=MessageInput,
        responses={
            201: TurnOutput,
            202: TurnOutput,
            400: ErrorOutput,
            404: ErrorOutput,
            409: ErrorOutput,
            422: ErrorOutput,
        },
    )
    @idempotent
    def post(self, request: Request, conversation_id: UUID, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.target:
            return turn_response(queries.turn_for(user, int(idempotency.target)))
        queries.own_conversation(user, conversation_id)
        body = MessageInput(data=request.data)
        body.is_valid(raise_exception=True)
        given: dict[str, Any] = dict(body.validated_data)
        later = wants_async(request) or settings.TURN_SYNC_SECONDS <= 0
        turn = services.send_message(
            conversation_id=conversation_id,
            author=user,
            respond_async=later,
            correlation_id=correlation_of(request),
            now=timezone.now(),
            idempotency=idempotency,
            **given,
        )
        crash_point("turn.message_stored")
        return turn_response(turn if later else answered(turn))


class Branch(ApiView):
    """Show another branch of a conversation: the one that a message or a turn lies on."""

    @extend_schema(
        parameters=[KEY],
        request=BranchInput,
        responses={200: ConversationOutput, 400: ErrorOutput, 404: ErrorOutput, 409: ErrorOutput},
    )
    @idempotent
    def post(self, request: Request, conversation_id: UUID, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.used:  # another branch may have been chosen since
            return Response(conversation_json(queries.own_conversation(user, conversation_id)))
        body = BranchInput(data=request.data)
        body.is_valid(raise_exception=True)
        shown = services.select_branch(
            conversation_id=conversation_id,
            user=user,
            correlation_id=correlation_of(request),
            **body.validated_data,
        )
        return Response(conversation_json(shown))


class TurnRegenerate(ApiView):
    """Answer a turn's question once more, beside the old answer."""

    @extend_schema(
        parameters=[KEY, PREFER],
        request=None,
        responses={201: TurnOutput, 202: TurnOutput, 404: ErrorOutput, 409: ErrorOutput},
    )
    @idempotent
    def post(self, request: Request, turn_id: int, *, idempotency: IdempotencyKey | None) -> Response:
        user = user_of(request)
        if idempotency is not None and idempotency.target:
            return turn_response(queries.turn_for(user, int(idempotency.target)))
        later = wants_async(request) or settings.TURN_SYNC_SECONDS <= 0
        turn = services.regenerate(
            turn_id=turn_id,
            author=user,
            respond_async=later,
            correlation_id=correlation_of(request),
            now=timezone.now(),
            idempotency=idempotency,
        )
        return turn_response(turn if later else answered(turn))


class TurnDetail(ApiView):
    """One turn."""

    @extend_schema(responses={200: TurnOutput, 404: ErrorOutput})
    def get(self, request: Request, turn_id: int) -> Response:
        return Response(turn_json(queries.turn_for(user_of(request), turn_id)))


class TurnCancel(ApiView):
    """Stop a turn: 202 while its owner still has to end it, 200 with its final state when it has ended."""

    @extend_schema(parameters=[KEY], request=None, responses={200: TurnOutput, 202: TurnOutput, 404: ErrorOutput})
    @idempotent
    def post(self, request: Request, turn_id: int, *, idempotency: IdempotencyKey | None) -> Response:
        del idempotency  # cancelling twice is cancelling once
        user = user_of(request)
        found = queries.turn_for(user, turn_id)
        queries.own_conversation(user, found.conversation_id)
        turn = services.cancel_turn(turn_id=turn_id)
        return Response(turn_json(turn), status=status.HTTP_200_OK if turn.ended else status.HTTP_202_ACCEPTED)


@extend_schema(exclude=True)
class Missing(ApiView):
    """Every other address under /api/: 404, as JSON."""

    permission_classes = ()

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        raise NotFound


def answered(turn: Turn) -> Turn:
    """The turn, run in this request's thread until it ends, parks, or its time here is over."""
    return run_turn(turn.pk, agents=agents(), clock=timezone.now, sync_seconds=settings.TURN_SYNC_SECONDS)


def turn_response(turn: Turn) -> Response:
    """201 when the turn has ended, 202 with its address in every other case."""
    if turn.ended:
        return Response(turn_json(turn), status=status.HTTP_201_CREATED)
    return Response(turn_json(turn), status=status.HTTP_202_ACCEPTED, headers={"Location": f"/api/turns/{turn.pk}/"})
