"""Plans: the rows, and every way a row changes state (CAP-050 – 055).

    plan: see `tools.runs`; READY is `pending`
    step: pending -> running -> completed | failed | skipped      running <-> waiting_retry | waiting_approval
          a step goes back to pending with its plan; unended steps of a cancelled or failed plan become skipped

One arrow is one QuerySet method and one UPDATE, whose row count says whether the arrow was taken. The arrows of a step
are taken only while stream and plan are locked (a unit's closing, or an intervention), so that no two changes of one
plan ever wait for each other in a ring.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Self

from django.conf import settings
from django.contrib.contenttypes.fields import GenericForeignKey
from django.contrib.contenttypes.models import ContentType
from django.db import connection, models
from django.db.models import Q

from tools.messages import RunMessage
from tools.runs import TERMINAL, ClockTimestamp, LeasedRun, LeasedRunQuerySet, RunStatus


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
    LLM = "llm", "LLM"
    PLANNING = "planning"
    ASSESSMENT = "assessment"


# A pending step whose reads have all come to an end that it may go on from.
_READY = """SELECT s.id FROM {step} s WHERE s.plan_id = %s AND s.status = 'pending' AND NOT EXISTS (
    SELECT 1 FROM jsonb_array_elements_text(s.reads) AS read(key)
    JOIN {step} r ON r.plan_id = s.plan_id AND r.key = read.key
    WHERE NOT (r.status IN ('completed', 'skipped') OR r.status = 'failed' AND NOT r.is_critical))
    ORDER BY s."order" LIMIT %s"""


class ExecutionPlanQuerySet(LeasedRunQuerySet["ExecutionPlan"]):
    """The arrows of a plan; those it shares with a turn are in `LeasedRunQuerySet`."""

    def revise(self, pk: int) -> None:
        """Say that somebody from outside has changed the steps; the stream and the plan are locked by then."""
        self.filter(pk=pk).update(revision=models.F("revision") + 1)

    def idle_with_work(self) -> list[int]:
        """Keys of plans that wait for a person or a retry though a step of theirs is ready, or none waits."""
        step, plan = PlanStep._meta.db_table, self.model._meta.db_table
        ready = _READY.format(step=step).replace("s.plan_id = %s", "s.plan_id = p.id").replace("LIMIT %s", "LIMIT 1")
        with connection.cursor() as cursor:
            cursor.execute(
                f"""SELECT p.id FROM {plan} p
                    WHERE p.status NOT IN ('completed', 'failed', 'cancelled')
                      AND p.status IN ('waiting_approval', 'waiting_retry') AND p.cancel_requested_at IS NULL
                      AND (EXISTS ({ready}) OR NOT EXISTS (SELECT 1 FROM {step} w WHERE w.plan_id = p.id
                           AND w.status IN ('waiting_approval', 'waiting_retry'))) ORDER BY p.id"""  # noqa: S608
            )
            return [row[0] for row in cursor.fetchall()]


class ExecutionPlan(LeasedRun):
    """Durable work: ordered steps that a worker finishes (CAP-050)."""

    READY: ClassVar[str] = RunStatus.PENDING
    KIND: ClassVar[str] = "plan"
    PARENTS: ClassVar[tuple[str, ...]] = ("owner", "workspace")

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="plans")
    identity = models.CharField(max_length=64)
    goal = models.TextField()
    context_json = models.JSONField(default=dict)
    # the blackboard, kept between its steps' rounds (CAP-073)
    board = models.JSONField(default=dict, db_default={}, blank=True)
    template = models.CharField(max_length=64, blank=True)
    conversation_id = models.UUIDField(null=True)
    turn_id = models.BigIntegerField(null=True)
    retry_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="retries")
    subject_type = models.ForeignKey(ContentType, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    subject_id = models.CharField(max_length=64, blank=True)
    subject = GenericForeignKey("subject_type", "subject_id")
    budget_usd = models.DecimalField(max_digits=12, decimal_places=4, null=True, blank=True)
    budget_tokens = models.BigIntegerField(null=True, blank=True)
    deadline = models.DateTimeField(null=True, blank=True)
    adaptable = models.BooleanField(default=True)
    adapt_permission = models.CharField(max_length=120, blank=True)
    revision = models.BigIntegerField(default=0)  # raised by whatever changes its steps from outside

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
        permissions = (
            ("cancel_executionplan", "Can cancel plans"),
            ("retry_executionplan", "Can retry failed plans"),
            ("adapt_executionplan", "Can change pending steps of plans"),
        )

    def __str__(self) -> str:
        return f"plan {self.pk} {self.status}"


class PlanStepQuerySet(models.QuerySet["PlanStep"]):
    """The arrows of a step."""

    def of(self, plan_id: int) -> Self:
        """The steps of one plan, in order."""
        return self.filter(plan_id=plan_id).order_by("order")

    def next_ready(self, plan_id: int, *, limit: int = 1) -> list[int]:
        """Keys of the first steps that may start now: each read step completed, skipped, or failed and not critical.

        Source: CAP-051.
        """
        with connection.cursor() as cursor:
            cursor.execute(_READY.format(step=self.model._meta.db_table), [plan_id, limit])
            return [row[0] for row in cursor.fetchall()]

    def start(self, pk: int) -> bool:
        """pending -> running; whether the arrow was taken."""
        return bool(
            self.filter(pk=pk, status=StepStatus.PENDING).update(
                status=StepStatus.RUNNING,
                not_before=None,
                started_at=models.functions.Coalesce("started_at", ClockTimestamp()),
            )
        )

    def complete(self, pk: int, *, result: Any, synthesis: str, **columns: Any) -> bool:
        """running -> completed; whether the arrow was taken."""
        return self._end(
            pk,
            (StepStatus.RUNNING,),
            StepStatus.COMPLETED,
            result_json=result,
            llm_synthesis=synthesis,
            error="",
            **columns,
        )

    def fail(self, pk: int, *, error: str, **columns: Any) -> bool:
        """running or waiting -> failed; whether the arrow was taken."""
        waiting = (StepStatus.RUNNING, StepStatus.WAITING_RETRY, StepStatus.WAITING_APPROVAL)
        return self._end(pk, waiting, StepStatus.FAILED, error=error, **columns)

    def wait_for_retry(self, pk: int, *, seconds: float, error: str) -> datetime | None:
        """running -> waiting_retry; when it may go on by the database's clock, None when the arrow was not taken."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"""UPDATE {self.model._meta.db_table} SET status = 'waiting_retry', attempts = attempts + 1,
                        error = %s, not_before = clock_timestamp() + %s * interval '1 second'
                    WHERE id = %s AND status = 'running' RETURNING not_before""",  # noqa: S608
                [error, seconds, pk],
            )
            row = cursor.fetchone()
        return row[0] if row else None

    def wait_for_approval(self, pk: int) -> bool:
        """running -> waiting_approval; whether the arrow was taken."""
        return bool(self.filter(pk=pk, status=StepStatus.RUNNING).update(status=StepStatus.WAITING_APPROVAL))

    def approved(self, pk: int) -> bool:
        """waiting_approval -> pending: its calls were decided; whether the arrow was taken."""
        return bool(self.filter(pk=pk, status=StepStatus.WAITING_APPROVAL).update(status=StepStatus.PENDING))

    def hand_back(self, plan_id: int) -> int:
        """running -> pending, for all steps of a plan whose owner leaves it or was lost; how many."""
        return self.filter(plan_id=plan_id, status=StepStatus.RUNNING).update(status=StepStatus.PENDING)

    def hand_back_one(self, pk: int) -> bool:
        """running -> pending, for a step that its owner leaves between two rounds; whether the arrow was taken."""
        return bool(self.filter(pk=pk, status=StepStatus.RUNNING).update(status=StepStatus.PENDING))

    def pin_recipe(self, pk: int, version: int) -> None:
        """Remember which version of its recipe the step began with."""
        self.filter(pk=pk, recipe_version=None).update(recipe_version=version)

    def running(self, plan_id: int) -> int:
        """How many steps of the plan run now."""
        return self.filter(plan_id=plan_id, status=StepStatus.RUNNING).count()

    def has_due(self, plan_id: int) -> bool:
        """Whether a step of the plan waits for a retry that is due."""
        return self.filter(plan_id=plan_id, status=StepStatus.WAITING_RETRY, not_before__lte=ClockTimestamp()).exists()

    def retry_due(self, plan_id: int) -> int:
        """waiting_retry -> pending, for the steps of a plan whose wait is over; how many."""
        return self.filter(plan_id=plan_id, status=StepStatus.WAITING_RETRY, not_before__lte=ClockTimestamp()).update(
            status=StepStatus.PENDING, not_before=None
        )

    def skip_rest(self, plan_id: int) -> int:
        """Every step that has not ended -> skipped, because its plan was cancelled or has failed; how many."""
        return (
            self.filter(plan_id=plan_id)
            .exclude(status__in=STEP_TERMINAL)
            .update(status=StepStatus.SKIPPED, not_before=None, ended_at=ClockTimestamp())
        )

    def _end(self, pk: int, frm: tuple[str, ...], to: str, **columns: Any) -> bool:
        return bool(
            self.filter(pk=pk, status__in=frm).update(status=to, not_before=None, ended_at=ClockTimestamp(), **columns)
        )


class PlanStep(models.Model):
    """One step (CAP-050, CAP-051, CAP-053, CAP-080).

    `reads` are keys of earlier steps, resolved when the plan is made. `attempts` counts the waits after a failure that
    may pass, such as a 429.
    """

    plan = models.ForeignKey(
        ExecutionPlan, on_delete=models.CASCADE, related_name="steps", db_index=False
    )  # its constraints are indexes
    key = models.CharField(max_length=64)
    order = models.IntegerField()
    kind = models.CharField(max_length=10, choices=StepKind.choices, default=StepKind.LLM)
    action = models.TextField()
    recipe = models.CharField(max_length=64, blank=True)
    recipe_version = models.IntegerField(null=True, blank=True)
    tool_name = models.CharField(max_length=128, blank=True)
    args_json = models.JSONField(default=dict)
    reads = models.JSONField(default=list)
    is_critical = models.BooleanField(default=True)
    tier = models.CharField(max_length=16, blank=True)
    status = models.CharField(max_length=20, choices=StepStatus.choices, default=StepStatus.PENDING)
    attempts = models.SmallIntegerField(default=0)
    not_before = models.DateTimeField(null=True, blank=True)
    result_json = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True)
    llm_synthesis = models.TextField(blank=True)
    model_used = models.CharField(max_length=128, blank=True)
    stop_reason = models.CharField(max_length=24, blank=True)
    outcome_assessment = models.TextField(blank=True)
    outcome_satisfaction = models.SmallIntegerField(null=True, blank=True)
    improvement_suggestion = models.TextField(blank=True)
    origin_id = models.BigIntegerField(
        null=True, blank=True
    )  # of a copy: the first step of the line; its calls keep their keys
    copied_from = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+", db_index=False
    )
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = PlanStepQuerySet.as_manager()

    class Meta:
        ordering = ("plan", "order")
        indexes = (
            models.Index(fields=("plan", "order"), condition=Q(status="pending"), name="step_pending"),
            models.Index(fields=("copied_from",), condition=Q(copied_from__isnull=False), name="step_copied_from"),
        )
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
            models.CheckConstraint(
                condition=~Q(status=StepStatus.WAITING_RETRY) | Q(not_before__isnull=False), name="step_retry_has_time"
            ),
            models.CheckConstraint(
                condition=Q(outcome_satisfaction__isnull=True) | Q(outcome_satisfaction__range=(1, 5)),
                name="step_satisfaction",
            ),
        )

    def __str__(self) -> str:
        return f"step {self.key} {self.status}"


class StepMessage(RunMessage):
    """The journal of an LLM step: its loop goes on from here after a crash (design § 2.3)."""

    step = models.ForeignKey(PlanStep, on_delete=models.CASCADE, related_name="messages", db_index=False)

    class Meta:
        ordering = ("step", "round", "position")
        constraints = (
            models.UniqueConstraint(fields=("step", "round", "position"), name="one_step_message_a_place"),
            models.CheckConstraint(condition=Q(role__in=RunMessage.ROLES), name="step_message_role"),
        )

    def __str__(self) -> str:
        return f"{self.role} {self.round}.{self.position}"


class PlanChange(models.Model):
    """One change of a plan's pending steps: who, when, what it was and what it became (CAP-055)."""

    ACTIONS = ("insert", "remove", "update", "reorder")

    plan = models.ForeignKey(ExecutionPlan, on_delete=models.CASCADE, related_name="changes")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    by_step = models.ForeignKey(PlanStep, null=True, on_delete=models.SET_NULL, related_name="+")
    action = models.CharField(max_length=8)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("plan", "id")
        constraints = (
            models.CheckConstraint(
                condition=Q(action__in=("insert", "remove", "update", "reorder")), name="plan_change_action"
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} on plan {self.plan_id}"
