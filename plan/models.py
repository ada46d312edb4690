"""Plans: the rows, and every way a row changes state (CAP-050 – 055).

    plan: see `tools.runs`; READY is `pending`
    step: pending -> running -> completed | failed | skipped      running <-> waiting_retry | waiting_approval
          a step goes back to pending with its plan; unended steps of a cancelled or failed plan become skipped

One arrow is one QuerySet method and one UPDATE, whose row count says whether the arrow was taken.
"""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.contrib.contenttypes.fields import GenericForeignKey
from django.contrib.contenttypes.models import ContentType
from django.db import models
from django.db.models import Q

from tools.messages import RunMessage
from tools.runs import TERMINAL, LeasedRun, LeasedRunQuerySet, RunStatus


class StepStatus(models.TextChoices):
    PENDING = "pending"
    RUNNING = "running"
    WAITING_RETRY = "waiting_retry"
    WAITING_APPROVAL = "waiting_approval"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


STEP_TERMINAL = (StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED)


class StepKind(models.TextChoices):
    """`data` calls its tool without a model; the others call the model (CAP-053)."""

    DATA = "data"
    LLM = "llm"
    PLANNING = "planning"
    ASSESSMENT = "assessment"


class ExecutionPlanQuerySet(LeasedRunQuerySet["ExecutionPlan"]):
    """The arrows of a plan; those it shares with a turn are in `LeasedRunQuerySet`."""


class ExecutionPlan(LeasedRun):
    """Durable work: ordered steps that a worker finishes (CAP-050)."""

    READY: ClassVar[str] = RunStatus.PENDING
    KIND: ClassVar[str] = "plan"

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="plans")
    identity = models.CharField(max_length=64)
    goal = models.TextField()
    context_json = models.JSONField(default=dict)
    template = models.CharField(max_length=64, blank=True)
    conversation_id = models.UUIDField(null=True)
    turn_id = models.BigIntegerField(null=True)
    retry_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="retries")
    subject_type = models.ForeignKey(ContentType, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    subject_id = models.CharField(max_length=64, blank=True)
    subject = GenericForeignKey("subject_type", "subject_id")
    budget_usd = models.DecimalField(max_digits=12, decimal_places=4, null=True, blank=True)
    budget_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    deadline = models.DateTimeField(null=True, blank=True)
    adaptable = models.BooleanField(default=True)

    objects = ExecutionPlanQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(
                condition=Q(
                    status__in=(
                        RunStatus.PENDING,
                        RunStatus.RUNNING,
                        RunStatus.WAITING_RETRY,
                        RunStatus.WAITING_APPROVAL,
                        *TERMINAL,
                    )
                ),
                name="plan_status",
            ),
            models.CheckConstraint(
                condition=~Q(status=RunStatus.RUNNING) | Q(lease_until__isnull=False), name="plan_running_has_lease"
            ),
            models.CheckConstraint(condition=~Q(status__in=TERMINAL) | Q(ended_at__isnull=False), name="plan_ended_at"),
        )
        indexes = (
            # Not on lease_until: an index there would end HOT updates of the heartbeat.
            models.Index(fields=("id",), condition=~Q(status__in=TERMINAL), name="plan_open"),
            models.Index(fields=("conversation_id",), name="plan_conversation"),
            models.Index(fields=("workspace", "-id"), name="plan_workspace"),
        )

    def __str__(self) -> str:
        return f"plan {self.pk} {self.status}"


class PlanStepQuerySet(models.QuerySet["PlanStep"]):
    """The arrows of a step."""


class PlanStep(models.Model):
    """One step (CAP-050, CAP-051, CAP-053, CAP-080). `reads` are keys of earlier steps, resolved when the plan is made."""

    plan = models.ForeignKey(ExecutionPlan, on_delete=models.CASCADE, related_name="steps")
    key = models.CharField(max_length=64)
    order = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=StepKind.choices, default=StepKind.LLM)
    action = models.TextField()
    recipe = models.CharField(max_length=64, blank=True)
    recipe_version = models.PositiveIntegerField(null=True, blank=True)
    tool_name = models.CharField(max_length=128, blank=True)
    args_json = models.JSONField(default=dict)
    reads = models.JSONField(default=list)
    is_critical = models.BooleanField(default=True)
    tier = models.CharField(max_length=16, blank=True)
    status = models.CharField(max_length=20, choices=StepStatus.choices, default=StepStatus.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    not_before = models.DateTimeField(null=True, blank=True)
    result_json = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True)
    llm_synthesis = models.TextField(blank=True)
    model_used = models.CharField(max_length=128, blank=True)
    stop_reason = models.CharField(max_length=24, blank=True)
    outcome_assessment = models.TextField(blank=True)
    outcome_satisfaction = models.PositiveSmallIntegerField(null=True, blank=True)
    improvement_suggestion = models.TextField(blank=True)
    copied_from = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = PlanStepQuerySet.as_manager()

    class Meta:
        ordering = ("plan", "order")
        constraints = (
            models.UniqueConstraint(fields=("plan", "key"), name="one_step_a_key"),
            models.UniqueConstraint(
                fields=("plan", "order"), name="one_step_an_order", deferrable=models.Deferrable.DEFERRED
            ),
            models.CheckConstraint(condition=Q(status__in=StepStatus.values), name="step_status"),
            models.CheckConstraint(condition=Q(kind__in=StepKind.values), name="step_kind"),
            models.CheckConstraint(
                condition=~Q(status=StepStatus.COMPLETED) | Q(kind=StepKind.DATA) | ~Q(llm_synthesis=""),
                name="step_synthesis",  # an LLM step cannot complete without one (CAP-054)
            ),
        )

    def __str__(self) -> str:
        return f"step {self.key} {self.status}"


class StepMessage(RunMessage):
    """The journal of an LLM step: its loop goes on from here after a crash (design § 2.3)."""

    step = models.ForeignKey(PlanStep, on_delete=models.CASCADE, related_name="messages")

    class Meta:
        ordering = ("step", "round", "position")
        constraints = (
            models.UniqueConstraint(fields=("step", "round", "position"), name="one_step_message_a_place"),
            models.CheckConstraint(condition=Q(role__in=RunMessage.ROLES), name="step_message_role"),
        )

    def __str__(self) -> str:
        return f"{self.role} {self.round}.{self.position}"
