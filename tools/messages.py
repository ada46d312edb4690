"""The journal of a run: the messages of its rounds as rows, the same for a turn and for an LLM step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from llm.types import LLMMessage

if TYPE_CHECKING:
    from llm.types import ToolCall


class RunMessage(models.Model):
    """One message. (owner, round, position) places it: position 0 is the model's reply, 1… the results in call order.

    Round 0 holds what was asked. `dynamic` is layer 4 as it was sent with a user message, replayed byte for byte.
    """

    ROLES = ("user", "assistant", "tool", "note")

    round = models.IntegerField()
    position = models.SmallIntegerField(default=0)
    role = models.CharField(max_length=10)
    text = models.TextField(blank=True)
    dynamic = models.TextField(blank=True)
    tool_calls = models.JSONField(default=list)
    tool_call_id = models.CharField(max_length=128, blank=True)
    tool_name = models.CharField(max_length=128, blank=True)
    is_error = models.BooleanField(default=False)
    thinking = models.TextField(blank=True)
    blocks = models.JSONField(null=True)
    model = models.CharField(max_length=128, blank=True)
    provider = models.CharField(max_length=32, blank=True)
    stop_reason = models.CharField(max_length=24, blank=True)
    partial = models.BooleanField(default=False)  # cut by a cancel: shown to people, marked as such
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True

    def as_message(self) -> LLMMessage:
        """The row as the model port takes it."""
        calls: tuple[ToolCall, ...] = tuple(self.tool_calls)
        text = f"{self.text}\n\n{self.dynamic}" if self.dynamic else self.text
        return LLMMessage(
            role="user" if self.role == "note" else self.role,  # type: ignore[arg-type]  # the CHECK holds the set
            content=text,
            tool_calls=calls,
            tool_call_id=self.tool_call_id,
            tool_name=self.tool_name,
            is_error=self.is_error,
            blocks=self.blocks,
        )
