"""The ledger: a row for each tool call, also for one that was refused (CAP-031, CAP-101)."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from workspaces.models import Workspace
from workspaces.scoping import ScopedQuerySet


class ExecutionStatus(models.TextChoices):
    """blocked (never run) | started -> succeeded | failed | unknown; unknown -> succeeded | failed."""

    BLOCKED = "blocked"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ToolExecution(models.Model):
    """One call: who asked, what ran, what came back. Unique on (owner, round, position)."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    correlation_id = models.CharField(max_length=64, db_index=True)
    owner_kind = models.CharField(max_length=8)
    owner_id = models.BigIntegerField()
    conversation_id = models.UUIDField(null=True)
    plan_id = models.BigIntegerField(null=True)
    round = models.PositiveIntegerField()
    position = models.PositiveSmallIntegerField()
    tool_name = models.CharField(max_length=128)
    effect = models.CharField(max_length=8, blank=True)
    mode = models.CharField(max_length=12)
    arguments = models.JSONField(default=dict)
    arguments_digest = models.CharField(max_length=64)
    idempotency_key = models.CharField(max_length=64)
    status = models.CharField(max_length=12, choices=ExecutionStatus.choices)
    result = models.JSONField(null=True)
    error = models.CharField(max_length=500, blank=True)
    duration_ms = models.PositiveIntegerField(default=0)
    cached = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    objects = ScopedQuerySet["ToolExecution"].as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("owner_kind", "owner_id", "round", "position"), name="one_execution_a_call"
            ),
            models.CheckConstraint(
                condition=models.Q(owner_kind__in=("turn", "step", "call")), name="ledger_owner_kind"
            ),
        )
        indexes = (
            models.Index(fields=("conversation_id",), name="ledger_conversation"),
            models.Index(fields=("plan_id",), name="ledger_plan"),
        )

    def __str__(self) -> str:
        return f"{self.tool_name} {self.status}"
