"""The ledger: a row for each tool call, also for one that was refused (CAP-031, CAP-101)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Subquery
from django.db.models.functions import Coalesce

from workspaces.models import Workspace
from workspaces.scoping import ScopedQuerySet

if TYPE_CHECKING:
    from tools.types import ToolContext


class ExecutionStatus(models.TextChoices):
    """blocked (never run) | started -> succeeded | failed | unknown; unknown -> succeeded | failed."""

    BLOCKED = "blocked"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ToolExecutionQuerySet(ScopedQuerySet["ToolExecution"]):
    def of_call(self, context: ToolContext) -> Self:
        """The row of one call, by its identity."""
        return self.filter(
            owner_kind=context.owner_kind,
            owner_id=context.owner_id,
            round=context.round,
            position=context.position,
        )

    def cached_read(self, *, plan_id: int, tool_name: str, digest: str, scope_version: int) -> ToolExecution | None:
        """The plan's newest answer to a read, when nothing was written since (CAP-035).

        A write of the plan counts from its ledger row on, a write of anybody else from the scope's new version on.
        """
        own = self.filter(plan_id=plan_id)
        wrote = own.filter(effect__in=("write", "external")).exclude(status=ExecutionStatus.BLOCKED)
        return (
            own.filter(
                tool_name=tool_name,
                arguments_digest=digest,
                effect="read",
                status=ExecutionStatus.SUCCEEDED,
                cached=False,
                scope_version=scope_version,
                pk__gt=Coalesce(Subquery(wrote.order_by("-pk").values("pk")[:1]), 0),
            )
            .order_by("-pk")
            .first()
        )


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
    scope_version = models.BigIntegerField(null=True)  # of the workspace before a plan's read; null: not to be reused
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    objects = ToolExecutionQuerySet.as_manager()

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

    def value(self) -> Any:
        """The whole result."""
        return self.result
