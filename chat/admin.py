"""Conversations, turns and messages in the admin, and what a turn's model gets."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import truncatechars
from django.template.loader import render_to_string

from chat.models import Conversation, Message, Turn
from chat.preview import preview_of
from workspaces.errors import CapstanError
from workspaces.readonly import ReadOnlyInline, RunAdmin

SHOWN_CHARACTERS = 80  # of a text in a list
TITLE_CHARACTERS = 40


class TurnInline(ReadOnlyInline):
    model = Turn
    fk_name = "conversation"
    fields = ("id", "status", "asked", "answered", "model_used", "stop_reason", "created_at")
    show_change_link = True
    ordering = ("id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Turn]:
        return super().get_queryset(request).select_related("question")

    @admin.display(description="question")
    def asked(self, turn: Turn) -> str:
        return truncatechars(turn.question.text if turn.question else "", SHOWN_CHARACTERS)

    @admin.display(description="answer")
    def answered(self, turn: Turn) -> str:
        return truncatechars(turn.answer, SHOWN_CHARACTERS)


@admin.register(Conversation)
class ConversationAdmin(RunAdmin):
    list_display = ("title", "user", "workspace", "identity", "updated_at")
    list_filter = ("workspace", "identity")
    search_fields = ("title", "stream__id", "user__username")
    list_select_related = ("user", "workspace")
    inlines = (TurnInline,)


class MessageInline(ReadOnlyInline):
    model = Message
    fk_name = "turn"
    fields = ("round", "position", "role", "text", "tool_name", "is_error", "model", "stop_reason", "created_at")
    ordering = ("round", "position")


@admin.register(Turn)
class TurnAdmin(RunAdmin):
    list_display = ("id", "status", "title", "user", "created", "correlation", "stop_reason", "model_used")
    list_filter = ("status", "identity", "stop_reason")
    search_fields = ("=id", "correlation_id", "user__username")
    list_select_related = ("conversation", "user")
    inlines = (MessageInline,)
    readonly_fields = ("prompt_preview",)

    @admin.display(description="conversation", ordering="conversation__title")
    def title(self, turn: Turn) -> str:
        return truncatechars(turn.conversation.title, TITLE_CHARACTERS)

    @admin.display(description="What the model gets")
    def prompt_preview(self, turn: Turn) -> str:
        """Layer by layer, with estimated tokens and what the provider may keep in its cache."""
        try:
            parts = preview_of(turn)
        except CapstanError as exc:
            return f"There is no preview: {exc}"
        return render_to_string("chat/admin_preview.html", {"parts": parts, "tokens": sum(p.tokens for p in parts)})


@admin.register(Message)
class MessageAdmin(RunAdmin):
    workspace_path = "turn__workspace"
    user_path = "turn__user"
    list_display = ("id", "turn", "round", "position", "role", "tool_name", "beginning", "created_at")
    list_filter = ("role",)
    search_fields = ("text", "=turn__id", "tool_name")

    @admin.display(description="text")
    def beginning(self, message: Message) -> str:
        return truncatechars(message.text, SHOWN_CHARACTERS)
