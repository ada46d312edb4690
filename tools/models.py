"""Rows of the policy layer: the ledger, big results, approvals and calls made at a door; MCP servers beside it.

    ledger    blocked (never run) | started -> succeeded | failed | unknown      unknown -> succeeded | failed
    approval  pending -> approved | rejected | expired | withdrawn               approved -> executed | failed

One arrow is one QuerySet method and one UPDATE, whose row count says whether the arrow was taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.conf import settings
from django.db import models
from django.db.models import Q, Subquery
from django.db.models.functions import Coalesce

from tools.mcp_models import McpServer, McpTool
from tools.runs import TERMINAL, ClockTimestamp, LeasedRun, LeasedRunQuerySet, RunStatus
from workspaces.models import User, Workspace
from workspaces.scoping import ScopedQuerySet

__all__ = [
    "Approval",
    "ApprovalStatus",
    "ExecutionStatus",
    "McpServer",
    "McpTool",
    "Question",
    "StoredResult",
    "ToolCallRun",
    "ToolExecution",
]

if TYPE_CHECKING:
    from tools.types import ToolContext

OWNER_KINDS = ("turn", "step", "call")
LEFT_OPEN = "the run ended while this call ran; whether it took effect is not known"


class ExecutionStatus(models.TextChoices):
    """`unknown`: nobody can tell whether the call took effect."""

    BLOCKED = "blocked"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ToolExecutionQuerySet(ScopedQuerySet["ToolExecution"]):
    def of_call(self, place: ToolContext | Approval) -> Self:
        """The row of one call, by its identity."""
        return self.filter(
            owner_kind=place.owner_kind, owner_id=place.owner_id, round=place.round, position=place.position
        )

    def of_round(self, context: ToolContext) -> Self:
        """The rows of one round so far."""
        return self.filter(owner_kind=context.owner_kind, owner_id=context.owner_id, round=context.round)

    def settle(self, pk: int, *, happened: bool, result: Any, error: str) -> bool:
        """unknown -> succeeded | failed, as a person says; whether the arrow was taken."""
        return bool(
            self.filter(pk=pk, status=ExecutionStatus.UNKNOWN).update(
                status=ExecutionStatus.SUCCEEDED if happened else ExecutionStatus.FAILED,
                result=result,
                error=error,
                ended_at=ClockTimestamp(),
            )
        )

    def lose(self, context: ToolContext) -> bool:
        """started -> unknown: the process that ran the call is gone; whether the arrow was taken."""
        return bool(
            self.of_call(context)
            .filter(status=ExecutionStatus.STARTED)
            .update(status=ExecutionStatus.UNKNOWN, ended_at=ClockTimestamp())
        )

    def was_begun(self, context: ToolContext) -> bool:
        """Whether a process has begun the call and never said what came of it."""
        begun = (ExecutionStatus.STARTED, ExecutionStatus.UNKNOWN)
        return self.of_call(context).filter(status__in=begun).exists()

    def lose_open(self, owner_kind: str, owner_ids: Sequence[int]) -> int:
        """started -> unknown, because the run ends while the call is open; how many."""
        return self.filter(owner_kind=owner_kind, owner_id__in=list(owner_ids), status=ExecutionStatus.STARTED).update(
            status=ExecutionStatus.UNKNOWN, error=LEFT_OPEN, ended_at=ClockTimestamp()
        )

    def same_elsewhere(self, context: ToolContext, tool_name: str) -> ToolExecution | None:
        """What became of this very external call in the run that this one was copied from (design § 6 `retry`)."""
        return (
            self.filter(
                workspace_id=context.workspace.pk,
                tool_name=tool_name,
                effect="external",
                idempotency_key=context.idempotency_key,
            )
            .exclude(status=ExecutionStatus.BLOCKED)
            .order_by("-pk")
            .first()
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
    """One call: who asked, what ran, what came back. Unique on (owner, round, position).

    `result` is null where the result was too big for the model; the whole of it is in `stored` then.
    """

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )  # ledger_user_day
    correlation_id = models.CharField(max_length=64)
    owner_kind = models.CharField(max_length=8)
    owner_id = models.BigIntegerField()
    conversation_id = models.UUIDField(null=True)
    plan_id = models.BigIntegerField(null=True)
    round = models.IntegerField()
    position = models.SmallIntegerField()
    tool_name = models.CharField(max_length=128)
    effect = models.CharField(max_length=8, blank=True)
    mode = models.CharField(max_length=12)
    arguments = models.JSONField(default=dict)
    arguments_digest = models.CharField(max_length=64)
    idempotency_key = models.CharField(max_length=64)
    status = models.CharField(max_length=12, choices=ExecutionStatus.choices)
    result = models.JSONField(null=True)
    error = models.CharField(max_length=500, blank=True)
    duration_ms = models.IntegerField(default=0)
    cached = models.BooleanField(default=False)
    scope_version = models.BigIntegerField(null=True)  # of the workspace before a plan's read; null: not to be reused
    told_tokens = models.IntegerField(default=0)  # about how much of the result the model was given
    approval = models.ForeignKey("Approval", null=True, on_delete=models.SET_NULL, related_name="+", db_index=False)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    objects = ToolExecutionQuerySet.as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("owner_kind", "owner_id", "round", "position"), name="one_execution_a_call"
            ),
            models.CheckConstraint(condition=Q(owner_kind__in=OWNER_KINDS), name="ledger_owner_kind"),
        )
        indexes = (
            models.Index(fields=("correlation_id",), name="ledger_correlation"),
            models.Index(
                fields=("conversation_id",), condition=Q(conversation_id__isnull=False), name="ledger_conversation"
            ),
            models.Index(
                fields=("plan_id", "arguments_digest"), condition=Q(plan_id__isnull=False), name="ledger_plan"
            ),
            models.Index(fields=("approval",), condition=Q(approval__isnull=False), name="ledger_approval"),
            models.Index(fields=("user", "created_at"), name="ledger_user_day"),
            models.Index(fields=("idempotency_key",), condition=Q(effect="external"), name="ledger_external_key"),
        )

    def __str__(self) -> str:
        return f"{self.tool_name} {self.status}"

    def value(self) -> Any:
        """The whole result, also a big one."""
        stored = StoredResult.objects.filter(pk=self.pk).first() if self.result is None else None
        return self.result if stored is None else stored.value()


class StoredResult(models.Model):
    """The whole of a result that was too big for the model, as the text it pages through."""

    execution = models.OneToOneField(ToolExecution, on_delete=models.CASCADE, primary_key=True, related_name="stored")
    text = models.TextField()
    is_json = models.BooleanField()  # False: the result was this very text

    def __str__(self) -> str:
        return f"result of call {self.pk}"

    def value(self) -> Any:
        """The result as the tool gave it."""
        return json.loads(self.text) if self.is_json else self.text


class ApprovalStatus(models.TextChoices):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    EXECUTED = "executed"
    FAILED = "failed"


class Question(models.TextChoices):
    """What the person is asked: may it run, or did it happen (a call that a crash cut off)."""

    RUN = "run"
    HAPPENED = "happened"


class ApprovalQuerySet(ScopedQuerySet["Approval"]):
    def of_call(self, place: ToolContext | ToolExecution | Approval) -> Self:
        """What people were asked about one call."""
        return self.of_owner(place.owner_kind, place.owner_id).filter(round=place.round, position=place.position)

    def of_owner(self, owner_kind: str, owner_id: int) -> Self:
        return self.filter(owner_kind=owner_kind, owner_id=owner_id)

    def pending(self) -> Self:
        return self.filter(status=ApprovalStatus.PENDING)

    def refused(self, owner_kind: str, owner_id: int, tool_name: str) -> Self:
        """Refusals of a tool in one turn, step or call: it stays refused there."""
        return self.of_owner(owner_kind, owner_id).filter(
            tool_name=tool_name,
            question=Question.RUN,
            status__in=(ApprovalStatus.REJECTED, ApprovalStatus.EXPIRED),
        )

    def standing(self, context: ToolContext, *, tool_name: str, digest: str) -> Self:
        """What was approved for more than one call, and covers this one.

        Keyed by the requester, the tool and its canonical arguments, unless the approver widened it; it ends with the
        turn or the conversation (a plan without one: the plan).
        """
        whole = (
            Q(conversation_id=context.conversation_id)
            if context.conversation_id is not None
            else Q(plan_id=context.plan_id, plan_id__isnull=False)
        )
        turn = Q(policy="turn", owner_kind=context.owner_kind, owner_id=context.owner_id)
        return self.filter(
            Q(policy="conversation") & whole | turn,
            Q(decided_digest=digest) | Q(any_arguments=True),
            workspace_id=context.workspace.pk,
            requested_by_id=context.user.pk,
            tool_name=tool_name,
            destructive=False,
            question=Question.RUN,
            status__in=(ApprovalStatus.APPROVED, ApprovalStatus.EXECUTED, ApprovalStatus.FAILED),
        )

    def decide(self, pk: int, *, to: str, by: User | None, note: str, now: datetime, **columns: Any) -> bool:
        """pending -> approved | rejected | expired; whether the arrow was taken."""
        return bool(
            self.filter(pk=pk, status=ApprovalStatus.PENDING).update(
                status=to, decided_by=by, note=note, decided_at=now, **columns
            )
        )

    def withdraw(self, owner_kind: str, owner_ids: Sequence[int], *, now: datetime) -> list[Approval]:
        """pending -> withdrawn, because the run has ended; those that were."""
        taken = self.raw(
            f"""UPDATE {self.model._meta.db_table} SET status = 'withdrawn', decided_at = %s
                WHERE owner_kind = %s AND owner_id = ANY(%s) AND status = 'pending' RETURNING *""",  # noqa: S608
            [now, owner_kind, list(owner_ids)],
        )
        return sorted(taken, key=lambda approval: approval.pk)

    def carry_out(self, pk: int, *, succeeded: bool) -> bool:
        """approved -> executed | failed; whether the arrow was taken."""
        to = ApprovalStatus.EXECUTED if succeeded else ApprovalStatus.FAILED
        return bool(self.filter(pk=pk, status=ApprovalStatus.APPROVED).update(status=to))


class Approval(models.Model):
    """A call that waits, or waited, for a person (CAP-033). Only its stored or edited arguments are ever run."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    correlation_id = models.CharField(max_length=64, db_index=True)
    owner_kind = models.CharField(max_length=8)
    owner_id = models.BigIntegerField()
    conversation_id = models.UUIDField(null=True)
    plan_id = models.BigIntegerField(null=True)
    round = models.PositiveIntegerField()
    position = models.PositiveSmallIntegerField()
    identity = models.CharField(max_length=64)
    mode = models.CharField(max_length=12)
    tool_name = models.CharField(max_length=128)
    effect = models.CharField(max_length=8)
    destructive = models.BooleanField(default=False)
    question = models.CharField(max_length=8, choices=Question.choices, default=Question.RUN)
    policy = models.CharField(max_length=12)
    summary = models.CharField(max_length=500)
    arguments = models.JSONField()
    arguments_digest = models.CharField(max_length=64)
    edited_arguments = models.JSONField(null=True)
    decided_digest = models.CharField(max_length=64, blank=True)  # of the arguments that were approved
    any_arguments = models.BooleanField(default=False)
    status = models.CharField(max_length=10, choices=ApprovalStatus.choices, default=ApprovalStatus.PENDING)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    decided_at = models.DateTimeField(null=True)
    note = models.CharField(max_length=1000, blank=True)

    objects = ApprovalQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        permissions = (("decide_approval", "Can approve or reject tool calls in the workspace"),)
        constraints = (
            models.UniqueConstraint(
                fields=("owner_kind", "owner_id", "round", "position", "question"), name="one_approval_a_question"
            ),
            models.CheckConstraint(condition=Q(owner_kind__in=OWNER_KINDS), name="approval_owner_kind"),
            models.CheckConstraint(condition=Q(status__in=ApprovalStatus.values), name="approval_status"),
            models.CheckConstraint(
                condition=Q(status__in=(ApprovalStatus.PENDING, ApprovalStatus.WITHDRAWN))
                | Q(decided_at__isnull=False),
                name="approval_decided_at",
            ),
        )
        indexes = (
            models.Index(fields=("workspace", "expires_at"), condition=Q(status="pending"), name="approval_pending"),
            models.Index(fields=("conversation_id",), name="approval_conversation"),
            models.Index(fields=("plan_id",), name="approval_plan"),
        )

    def __str__(self) -> str:
        return f"{self.tool_name} {self.status}"

    @property
    def approved_arguments(self) -> dict[str, Any]:
        """What runs: the approver's arguments where there are such, else those that were stored."""
        arguments: dict[str, Any] = self.arguments if self.edited_arguments is None else self.edited_arguments
        return arguments


class ToolCallRunQuerySet(LeasedRunQuerySet["ToolCallRun"]):
    """The arrows of a call; those it shares with a turn are in `LeasedRunQuerySet`."""


class ToolCallRun(LeasedRun):
    """A call made at a door that has no turn and no step: REST, MCP, the command line, the admin (design § 8)."""

    READY: ClassVar[str] = RunStatus.QUEUED
    KIND: ClassVar[str] = "call"
    PARENTS: ClassVar[tuple[str, ...]] = ("user", "workspace")

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    identity = models.CharField(max_length=64)
    mode = models.CharField(max_length=12)
    door = models.CharField(max_length=12)
    tool_name = models.CharField(max_length=128)
    arguments = models.JSONField()

    objects = ToolCallRunQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(
                condition=Q(status__in=(RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING_APPROVAL, *TERMINAL)),
                name="call_status",
            ),
            models.CheckConstraint(
                condition=~Q(status=RunStatus.RUNNING) | Q(lease_until__isnull=False), name="call_running_has_lease"
            ),
            models.CheckConstraint(condition=~Q(status__in=TERMINAL) | Q(ended_at__isnull=False), name="call_ended_at"),
        )
        indexes = (models.Index(fields=("id",), condition=~Q(status__in=TERMINAL), name="call_open"),)

    def __str__(self) -> str:
        return f"call {self.pk} {self.status}"
