"""Conversations, turns and messages: the rows, and every way a turn changes state.

A turn is one user message and all that answers it; `tools.runs` has its arrows, READY is `queued`. A conversation has
at most one turn that has not ended: a partial unique index holds it.
"""

from __future__ import annotations

from typing import ClassVar, Self

from django.conf import settings
from django.db import models
from django.db.models import Q

from events.models import Stream
from tools.messages import RunMessage
from tools.runs import TERMINAL, LeasedRun, LeasedRunQuerySet, RunStatus
from workspaces.models import Workspace
from workspaces.scoping import ScopedQuerySet


class Conversation(models.Model):
    """A person's thread with one agent. Its key is its stream's key."""

    stream = models.OneToOneField(Stream, on_delete=models.CASCADE, primary_key=True, related_name="+")
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=200, blank=True)
    identity = models.CharField(max_length=64)
    context_type = models.CharField(max_length=64, blank=True)
    context_id = models.CharField(max_length=64, blank=True)
    board = models.JSONField(default=dict, blank=True)  # the blackboard, kept between turns (CAP-073)
    active_turn = models.ForeignKey("Turn", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now_add=True)

    objects = ScopedQuerySet["Conversation"].as_manager()

    class Meta:
        ordering = ("-updated_at",)
        indexes = (models.Index(fields=("user", "-updated_at"), name="conversation_recent"),)

    def __str__(self) -> str:
        return self.title or str(self.pk)


class TurnQuerySet(LeasedRunQuerySet["Turn"]):
    """The arrows of a turn; those it shares with a plan are in `LeasedRunQuerySet`."""

    def open(self) -> Self:
        """Turns that have not ended."""
        return self.exclude(status__in=TERMINAL)


class Turn(LeasedRun):
    """One user message and all that answers it.

    `after` is the turn before it on its branch: an edit or a new try is another turn after the same one. The active
    branch is what `Conversation.active_turn` leads back through. `question` is the message it answers: its own, or,
    for a new try, that of the turn it was made beside.
    """

    READY: ClassVar[str] = RunStatus.QUEUED
    KIND: ClassVar[str] = "turn"

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="turns")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    identity = models.CharField(max_length=64)
    recipe = models.CharField(max_length=64, blank=True)
    recipe_version = models.IntegerField(null=True, blank=True)
    stop_reason = models.CharField(max_length=32, blank=True)
    notice = models.TextField(blank=True)
    model_used = models.CharField(max_length=128, blank=True)
    answer = models.TextField(blank=True)
    plan_id = models.BigIntegerField(null=True, blank=True)
    after = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    question = models.ForeignKey("Message", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    context_type = models.CharField(max_length=64, blank=True)
    context_id = models.CharField(max_length=64, blank=True)
    dynamic = models.TextField(blank=True)  # layer 4 as it was sent behind the question, replayed byte for byte
    snapshot_version = models.BigIntegerField(null=True, blank=True)
    snapshot_is_summary = models.BooleanField(default=False)

    objects = TurnQuerySet.as_manager()

    class Meta:
        ordering = ("conversation", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("conversation",), condition=~Q(status__in=TERMINAL), name="one_active_turn"
            ),
            models.CheckConstraint(
                condition=Q(status__in=(RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING_APPROVAL, *TERMINAL)),
                name="turn_status",
            ),
            models.CheckConstraint(
                condition=~Q(status=RunStatus.RUNNING) | Q(lease_until__isnull=False), name="turn_running_has_lease"
            ),
            models.CheckConstraint(condition=~Q(status__in=TERMINAL) | Q(ended_at__isnull=False), name="turn_ended_at"),
        )
        indexes = (models.Index(fields=("id",), condition=~Q(status__in=TERMINAL), name="turn_open"),)

    def __str__(self) -> str:
        return f"turn {self.pk} {self.status}"


class Message(RunMessage):
    """One message of a conversation.

    `parent` is what it answers or goes on from; siblings are edits of one question or new tries of one answer. A
    result's parent is the reply that made its call.
    """

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages")
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="messages", db_index=False)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="children")

    class Meta:
        ordering = ("conversation", "id")
        constraints = (
            models.UniqueConstraint(fields=("turn", "round", "position"), name="one_message_a_place"),
            models.CheckConstraint(condition=Q(role__in=RunMessage.ROLES), name="message_role"),
        )

    def __str__(self) -> str:
        return f"{self.role} {self.round}.{self.position}"


class HistorySummary(models.Model):
    """What stands in a request for a turn and all before it on its branch; made once, never rewritten (CAP-041)."""

    turn = models.OneToOneField(Turn, on_delete=models.CASCADE, related_name="summary")
    text = models.TextField()
    turns = models.PositiveIntegerField()  # how many it stands for
    model = models.CharField(max_length=128, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"summary up to turn {self.turn_id}"


class IdempotencyKey(models.Model):
    """A POST with an `Idempotency-Key`: sending it again does nothing and shows what became of the first one.

    No answer is stored: it would outlive what it shows, and the right of its user to see that.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=128)
    path = models.CharField(max_length=300)
    digest = models.CharField(max_length=64)
    target = models.CharField(max_length=64, blank=True)  # the turn or conversation made under it, in the same commit
    status_code = models.PositiveSmallIntegerField(null=True)  # of the answer, where nothing was made
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "key"), name="one_use_of_a_key"),)
        indexes = (models.Index(fields=("created_at",), name="idempotency_age"),)

    def __str__(self) -> str:
        return f"{self.key} {'used' if self.used else 'open'}"

    @property
    def used(self) -> bool:
        """Whether the request was carried out; a replay looks at what became of it and does nothing."""
        return bool(self.target) or self.status_code is not None
