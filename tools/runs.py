"""Leased runs: the columns and arrows that turns and plans share.

    pending | queued -> running -> pending | queued (hand-back) | waiting_retry | waiting_approval
                                -> completed | failed | cancelled
    waiting_retry -> running (claim) | ready | failed | cancelled       waiting_approval -> ready | failed | cancelled

A claim takes a run that is free: ready or waiting for a retry that is due, or running with its lease past. The
database's `clock_timestamp()` decides. `fence` grows with every claim; each unit ends with an UPDATE that names it, so
an owner that was replaced commits nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from django.conf import settings
from django.db import connection, models
from django.db.models.functions import Now
from psycopg.types.numeric import Int4, Int8

from events.models import Stream
from llm.errors import LLMCancelled
from tools.errors import LeaseLost
from tools.prepared import Prepared, columns_of, instance_of
from workspaces.models import Workspace
from workspaces.scoping import ScopedQuerySet

MAX_ATTEMPTS = 5
SUSPECT_ATTEMPTS = 2


class RunStatus(models.TextChoices):
    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING_RETRY = "waiting_retry"
    WAITING_APPROVAL = "waiting_approval"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class ClockTimestamp(Now):
    """The database's clock at this very moment, not the transaction's start."""

    template = "clock_timestamp()"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="clock_timestamp()", **extra)


def database_now() -> datetime:
    """Aware UTC time by the database's clock, for what is compared with times that another host wrote."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    return now  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Due:
    """A run that should be sent to a worker."""

    pk: int
    suspect: bool


R = TypeVar("R", bound="LeasedRun")


class LeasedRunQuerySet(ScopedQuerySet[R]):
    """One method an arrow, one UPDATE a method."""

    def claim(self, pk: int, *, owner: str, suspect: bool = False) -> R | None:
        """Take a free run; None when it is not free, of the other kind, or past its attempts (CAP-052).

        Args:
            owner: names this process in logs and the admin.
            suspect: claim only runs whose last attempts came to nothing; False: only the others.

        Returns:
            The run as it was taken, what `PARENTS` names loaded with it. Only the holder of its fence may write it.
        """
        row = _claiming(self.model).row(
            {
                "owner": owner,
                "lease": float(settings.CAPSTAN_LEASE_SECONDS),
                "pk": Int8(pk),
                "most": Int4(MAX_ATTEMPTS),
                "some": Int4(SUSPECT_ATTEMPTS),
                "suspect": suspect,
                "ready": str(self.model.READY),
            }
        )
        return None if row is None else instance_of(self.model, row, parents=self.model.PARENTS)

    def hold(self, pk: int, *, fence: int, progress: bool = True, despite_cancel: bool = False) -> None:
        """Prove that the caller still owns the run, and renew the lease; the last statement of every unit.

        Args:
            progress: the unit did something that will not be done again, so the attempts begin anew.
            despite_cancel: the unit only keeps what has happened outside, which a cancel does not undo.

        Raises:
            LeaseLost: another owner came first, or the run has ended; the transaction must roll back.
            LLMCancelled: somebody cancelled first; the transaction must roll back, and the caller ends the run.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                f"""UPDATE {self.model._meta.db_table} SET attempts = CASE WHEN %s THEN 0 ELSE attempts END,
                        lease_until = clock_timestamp() + %s * interval '1 second'
                    WHERE id = %s AND fence = %s AND status = 'running'
                      AND (cancel_requested_at IS NULL OR %s)""",  # noqa: S608
                [progress, settings.CAPSTAN_LEASE_SECONDS, pk, fence, despite_cancel],
            )
            held = cursor.rowcount
        if not held:
            raise self.refused(pk, fence=fence)

    def refused(self, pk: int, *, fence: int) -> LeaseLost | LLMCancelled:
        """Why the caller may not write the run, once its last statement has found no row."""
        own = self.filter(pk=pk, fence=fence, status=RunStatus.RUNNING, cancel_requested_at__isnull=False)
        return LLMCancelled(reason="cancel") if own.exists() else LeaseLost(run=pk, fence=fence)

    def leave(self, pk: int, *, fence: int, to: str, **columns: Any) -> None:
        """Take the arrow from running to `to`, giving up the lease; the last statement of a run's last unit.

        Args:
            to: a ready, waiting or terminal status.
            columns: what else the row says then, such as `not_before` or `stop_reason`.

        Raises:
            LeaseLost: the caller does not own the run any more; the transaction must roll back.
        """
        if to in TERMINAL:
            columns.setdefault("ended_at", ClockTimestamp())
        gone = self.filter(pk=pk, fence=fence, status=RunStatus.RUNNING).update(
            status=to, lease_owner="", lease_until=None, attempts=0, dispatched_at=None, dispatches=0, **columns
        )
        if not gone:
            raise LeaseLost(run=pk, fence=fence)

    def move(self, pk: int, *, frm: Iterable[str], to: str, **columns: Any) -> bool:
        """Take an arrow from outside the owner; whether it was taken. The stream and the run are locked by then."""
        if to in TERMINAL:
            columns.setdefault("ended_at", ClockTimestamp())
        return bool(
            self.filter(pk=pk, status__in=tuple(frm)).update(
                status=to,
                lease_owner="",
                lease_until=None,
                attempts=0,
                dispatched_at=None,
                dispatches=0,
                fence=models.F("fence") + 1,
                **columns,
            )
        )

    def request_cancel(self, pk: int) -> bool:
        """Ask the owner to stop; False when the run has ended. Asking twice is asking once."""
        return bool(
            self.filter(pk=pk)
            .exclude(status__in=TERMINAL)
            .update(cancel_requested_at=models.functions.Coalesce("cancel_requested_at", ClockTimestamp()))
        )

    def release(self, pks: Sequence[tuple[int, int]]) -> int:
        """Give back runs that this process leaves without having failed, such as at its shutdown; how many."""
        released = 0
        for pk, fence in pks:
            released += self.filter(pk=pk, fence=fence, status=RunStatus.RUNNING).update(
                status=self.model.READY, lease_owner="", lease_until=None, attempts=0, dispatched_at=None, dispatches=0
            )
        return released

    def take_due(self, *, limit: int = 500) -> list[Due]:
        """Mark and return the runs that nobody works on and that nobody was told of lately (CAP-064).

        Free runs under the attempts cap: never dispatched, or dispatched and not claimed for 10 s (for a lease, where
        that is shorter), doubling to 60 s. A time that lies ahead is of a clock that was put right since, and counts
        for nothing.
        """
        table = self.model._meta.db_table
        with connection.cursor() as cursor:
            cursor.execute(
                f"""WITH due AS MATERIALIZED (
                        SELECT id FROM {table}
                        WHERE status NOT IN ('completed', 'failed', 'cancelled') AND attempts < %s
                          AND cancel_requested_at IS NULL
                          AND (status IN (%s, 'waiting_retry')
                                 AND (not_before IS NULL OR not_before <= clock_timestamp())
                               OR status = 'running' AND lease_until < clock_timestamp())
                          AND (dispatched_at IS NULL OR dispatched_at <= clock_timestamp()
                                 - LEAST(%s * 2 ^ LEAST(dispatches - 1, 3), 60) * interval '1 second'
                               OR dispatched_at > clock_timestamp())
                        ORDER BY id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
                    UPDATE {table} r SET dispatched_at = clock_timestamp(), dispatches = dispatches + 1
                    FROM due WHERE r.id = due.id RETURNING r.id, r.attempts""",  # noqa: S608
                [MAX_ATTEMPTS, self.model.READY, min(10, settings.CAPSTAN_LEASE_SECONDS), limit],
            )
            rows = cursor.fetchall()
        return [Due(pk=pk, suspect=attempts >= SUSPECT_ATTEMPTS) for pk, attempts in sorted(rows)]

    def mark_dispatched(self, pk: int) -> bool:
        """Say that a worker is told, so that the sweep does not tell it again at once; whether the run is ready."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"""UPDATE {self.model._meta.db_table} SET dispatched_at = clock_timestamp(), dispatches = 1
                    WHERE id = %s AND status = %s AND dispatched_at IS NULL""",  # noqa: S608
                [pk, self.model.READY],
            )
            return bool(cursor.rowcount)

    def not_dispatched(self, pk: int) -> None:
        """Take `mark_dispatched` back: no message was sent, and the next sweep sends one."""
        self.filter(pk=pk, status=self.model.READY, dispatches=1).update(dispatched_at=None, dispatches=0)

    def spent(self) -> Self:
        """Runs whose attempts are used up and whose last owner is gone; the sweep fails them."""
        return self.filter(attempts__gte=MAX_ATTEMPTS, status=RunStatus.RUNNING, lease_until__lt=ClockTimestamp())

    def cancel_orphans(self) -> Self:
        """Runs that somebody cancelled and that no live owner will end."""
        unowned = models.Q(status__in=(self.model.READY, RunStatus.WAITING_RETRY, RunStatus.WAITING_APPROVAL))
        silent = models.Q(status=RunStatus.RUNNING, lease_until__lt=ClockTimestamp())
        return self.filter(unowned | silent, cancel_requested_at__isnull=False)


@cache
def _claiming(model: type[LeasedRun]) -> Prepared:
    keys: list[Any] = [model._meta.get_field(name) for name in model.PARENTS]
    parents = [(field, f"p{place}") for place, field in enumerate(keys)]
    tables = ", ".join(f"{field.related_model._meta.db_table} {alias}" for field, alias in parents)
    joined = "".join(f" AND {alias}.id = r.{field.column}" for field, alias in parents)
    returned = [columns_of(model, "r"), *(columns_of(field.related_model, alias) for field, alias in parents)]
    return Prepared(
        f"""UPDATE {model._meta.db_table} r SET status = 'running', lease_owner = %(owner)s,
                lease_until = clock_timestamp() + %(lease)s * interval '1 second', fence = r.fence + 1,
                attempts = r.attempts + 1, not_before = NULL, dispatched_at = NULL, dispatches = 0,
                started_at = COALESCE(r.started_at, clock_timestamp())
            {"FROM " + tables if tables else ""}
            WHERE r.id = %(pk)s AND r.attempts < %(most)s AND (r.attempts >= %(some)s) = %(suspect)s
              AND r.cancel_requested_at IS NULL
              AND (r.status IN (%(ready)s, 'waiting_retry')
                     AND (r.not_before IS NULL OR r.not_before <= clock_timestamp())
                   OR r.status = 'running' AND r.lease_until < clock_timestamp()){joined}
            RETURNING {", ".join(returned)}"""  # noqa: S608
    )


class LeasedRun(models.Model):
    """What a turn and a plan have in common: a status, a lease with its fence, and what the sweep reads.

    `attempts` counts claims since the last progress. `READY` is the status a fresh or handed-back run has. `PARENTS`
    are foreign keys, never null, whose rows a claim brings along.
    """

    READY: ClassVar[str]
    PARENTS: ClassVar[tuple[str, ...]] = ()
    KIND: ClassVar[str]

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    stream = models.ForeignKey(Stream, on_delete=models.CASCADE, related_name="+")
    correlation_id = models.CharField(max_length=64, db_index=True)
    status = models.CharField(max_length=20, choices=RunStatus.choices)
    lease_owner = models.CharField(max_length=80, blank=True)
    lease_until = models.DateTimeField(null=True)
    fence = models.BigIntegerField(default=0)
    attempts = models.SmallIntegerField(default=0)
    rate_limit_waits = models.SmallIntegerField(default=0)
    not_before = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    dispatched_at = models.DateTimeField(null=True)
    dispatches = models.SmallIntegerField(default=0)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class RunRef:
    """A claimed run, as units and heartbeats need it."""

    model: type[LeasedRun]
    pk: int
    fence: int
    stream_id: uuid.UUID
    workspace_id: int
    correlation_id: str

    @classmethod
    def of(cls, run: LeasedRun) -> RunRef:
        """The run that a claim gave."""
        return cls(
            model=type(run),
            pk=run.pk,
            fence=run.fence,
            stream_id=run.stream_id,
            workspace_id=run.workspace_id,
            correlation_id=run.correlation_id,
        )

    @property
    def rows(self) -> LeasedRunQuerySet[Any]:
        return self.model._default_manager.all()  # type: ignore[return-value]  # every leased run has that query set
