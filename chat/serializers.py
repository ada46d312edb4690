"""What the API takes and gives, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework import serializers

from chat.models import Conversation, Message, Turn
from chat.services import MAX_TEXT, MAX_TITLE
from tools.queries import pending_of


class ConversationInput(serializers.Serializer[Any]):
    workspace = serializers.CharField(
        required=False, allow_blank=True, help_text="Key or slug; with one membership it may be left out."
    )
    title = serializers.CharField(required=False, allow_blank=True, max_length=MAX_TITLE, default="")
    context_type = serializers.CharField(required=False, allow_blank=True, max_length=64, default="")
    context_id = serializers.CharField(required=False, allow_blank=True, max_length=64, default="")


class BranchInput(serializers.Serializer[Any]):
    message_id = serializers.IntegerField(required=False, help_text="A message of the branch to show.")
    turn_id = serializers.IntegerField(required=False, help_text="In place of it a turn, also one without a message.")


class DecisionInput(serializers.Serializer[Any]):
    decision = serializers.ChoiceField(choices=["approve", "reject"])
    note = serializers.CharField(required=False, allow_blank=True, max_length=1000, default="")
    arguments = serializers.DictField(required=False, allow_null=True)
    any_arguments = serializers.BooleanField(required=False, default=False)


class ConversationPatch(serializers.Serializer[Any]):
    title = serializers.CharField(max_length=MAX_TITLE)


class MessageInput(serializers.Serializer[Any]):
    text = serializers.CharField(max_length=MAX_TEXT, trim_whitespace=False, help_text="Up to 32,000 characters.")
    parent_id = serializers.IntegerField(
        required=False, allow_null=True, help_text="The message it goes on from; null: a new beginning."
    )
    after_turn = serializers.IntegerField(
        required=False,
        allow_null=True,
        help_text="In place of `parent_id` the turn it comes after, also one that said nothing; null: a new beginning.",
    )
    recipe = serializers.SlugField(required=False, allow_blank=True, max_length=64)
    supersede = serializers.BooleanField(required=False, default=False)


class TurnOutput(serializers.Serializer[Any]):
    turn_id = serializers.IntegerField()
    conversation = serializers.UUIDField()
    status = serializers.CharField()
    text = serializers.CharField()
    plan_id = serializers.IntegerField(allow_null=True)
    approvals = serializers.ListField(child=serializers.IntegerField())
    stop_reason = serializers.CharField()
    notice = serializers.CharField()
    model = serializers.CharField()
    correlation_id = serializers.CharField()
    not_before = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    url = serializers.CharField()


class ConversationOutput(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    workspace = serializers.IntegerField()
    title = serializers.CharField()
    identity = serializers.CharField()
    context_type = serializers.CharField()
    context_id = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class MessageOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    turn_id = serializers.IntegerField()
    parent_id = serializers.IntegerField(allow_null=True)
    role = serializers.CharField()
    text = serializers.CharField()
    round = serializers.IntegerField()
    position = serializers.IntegerField()
    tool_calls = serializers.JSONField()
    tool_call_id = serializers.CharField()
    tool_name = serializers.CharField()
    is_error = serializers.BooleanField()
    model = serializers.CharField()
    stop_reason = serializers.CharField()
    sibling_ids = serializers.ListField(child=serializers.IntegerField())
    partial = serializers.BooleanField()  # type: ignore[assignment]  # the row's column, not the serializer's option
    created_at = serializers.DateTimeField()


MESSAGE_FIELDS = (
    "id",
    "turn_id",
    "parent_id",
    "role",
    "text",
    "round",
    "position",
    "tool_calls",
    "tool_call_id",
    "tool_name",
    "is_error",
    "model",
    "stop_reason",
    "partial",
    "created_at",
)


class ErrorOutput(serializers.Serializer[Any]):
    """`{"error": {"code", "message", "details"}}`, the same for every failure."""

    error = serializers.DictField()


def turn_json(turn: Turn) -> dict[str, Any]:
    """A turn as `TurnOutput` says."""
    return dict(
        TurnOutput(
            {
                "turn_id": turn.pk,
                "conversation": turn.conversation_id,
                "status": turn.status,
                "text": turn.answer,
                "plan_id": turn.plan_id,
                "approvals": [approval.pk for approval in pending_of("turn", turn.pk)] if not turn.ended else [],
                "stop_reason": turn.stop_reason,
                "notice": turn.notice,
                "model": turn.model_used,
                "correlation_id": turn.correlation_id,
                "not_before": turn.not_before,
                "created_at": turn.created_at,
                "ended_at": turn.ended_at,
                "url": f"/api/turns/{turn.pk}/",
            }
        ).data
    )


def conversation_json(conversation: Conversation) -> dict[str, Any]:
    """A conversation as `ConversationOutput` says."""
    return dict(
        ConversationOutput(
            {
                "id": conversation.pk,
                "workspace": conversation.workspace_id,
                **{
                    name: getattr(conversation, name)
                    for name in ("title", "identity", "context_type", "context_id", "created_at", "updated_at")
                },
            }
        ).data
    )


def message_json(message: Message, siblings: Sequence[int]) -> dict[str, Any]:
    """A message as `MessageOutput` says; what only the model is told (layer 4, thinking) stays out.

    Args:
        siblings: the keys of its alternatives, itself among them.
    """
    values = {name: getattr(message, name) for name in MESSAGE_FIELDS}
    return dict(MessageOutput({**values, "sibling_ids": list(siblings)}).data)
