"""Units: the one durable transaction in which a run's rows, effects and events commit together (design § 2.3).

Leaving `unit(...)` does, in this order: raise the versions of the scopes written, lock the stream, let the closing
decide how the run goes on, write the events, and last take the arrow that names the fence. `intervention(...)` is the
other way in: whoever changes a run from outside locks stream and run first, in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from django.db import InterfaceError, OperationalError, connection, transaction
from psycopg import errors as pg

from context.models import ScopeVersion
from events.models import EventRecord, Stream
from events.types import EventName
from streaming.signals import wake
from tools.errors import LeaseLost, WaitingInsideTransaction
from tools.runs import LeasedRun, RunRef, RunStatus
from workspaces.errors import NotVisible

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=LeasedRun)

RERUNS = 3


@dataclass(frozen=True, slots=True)
class Arrow:
    """How a run leaves its owner: the status, and what else its row says then."""

    to: str
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Unit:
    """What one open unit has gathered. Only `unit` makes it."""

    run: RunRef
    events: list[EventRecord] = field(default_factory=list)
    scopes: set[int] = field(default_factory=set)
    closing: Callable[[], Arrow | None] | None = None
    progress: bool = True  # False: it only takes a run over or starts a step, which must not zero `attempts`
    despite_cancel: bool = False  # True: it keeps what has happened outside, and nothing else
    _hooks: list[Callable[[], None]] = field(default_factory=list)

    def record(self, name: EventName, **payload: Any) -> None:
        """Write an event when the unit ends; `payload` is plain JSON."""
        self.events.append(EventRecord(name=name, payload=payload))

    def bump(self, workspace_id: int) -> None:
        """The unit wrote domain rows of this workspace; its snapshots are stale once it commits (CAP-038)."""
        self.scopes.add(workspace_id)

    def after_commit(self, hook: Callable[[], None]) -> None:
        """Run `hook` once the unit has committed, before any hook that a tool registered."""
        self._hooks.append(hook)

    def close_with(self, closing: Callable[[], Arrow | None]) -> None:
        """Let `closing` decide the run's arrow, under the locks of stream and run, in new queries.

        It may record more events. None keeps the run with its owner.
        """
        self.closing = closing

    def _flush(self) -> None:
        for hook in self._hooks:
            hook()
        if self.events:
            wake(self.run.stream_id)


@contextmanager
def unit(run: RunRef) -> Iterator[Unit]:
    """Open the durable transaction of one unit of `run`; all of it commits, or none.

    Raises:
        LeaseLost: the caller does not own the run any more; nothing was written.
        LLMCancelled: somebody cancelled the run; nothing was written, and the caller ends it.
    """
    with transaction.atomic(durable=True):
        gathered = Unit(run=run)
        transaction.on_commit(gathered._flush)
        yield gathered
        ScopeVersion.objects.bump(gathered.scopes)
        arrow: Arrow | None = None
        if gathered.closing is not None:
            Stream.objects.lock(run.stream_id)
            if not lock_run(run):
                raise LeaseLost(run=run.pk, fence=run.fence)
            arrow = gathered.closing()
        Stream.objects.append(run.stream_id, gathered.events, correlation_id=run.correlation_id)
        if arrow is None:
            run.rows.hold(run.pk, fence=run.fence, progress=gathered.progress, despite_cancel=gathered.despite_cancel)
        else:
            run.rows.leave(run.pk, fence=run.fence, to=arrow.to, **arrow.columns)


def lock_run(run: RunRef) -> bool:
    """Lock the run's row; whether the caller still owns it."""
    return (
        run.rows.select_for_update(no_key=True, of=("self",))
        .filter(pk=run.pk, fence=run.fence, status=RunStatus.RUNNING)
        .values_list("pk", flat=True)
        .first()
        is not None
    )


def in_unit(run: RunRef, body: Callable[[Unit], T]) -> T:
    """Run `body` in a unit; after a serialization failure or a deadlock, again from the start, three times.

    Raises:
        LeaseLost: the caller does not own the run any more.
    """
    return rerun(lambda: unit(run), body)


def rerun(open_unit: Callable[[], AbstractContextManager[Unit]], body: Callable[[Unit], T]) -> T:
    """As `in_unit`, for an owner that opens its units itself."""
    for left in range(RERUNS, -1, -1):
        try:
            with open_unit() as opened:
                return body(opened)
        except OperationalError as exc:
            if not isinstance(exc.__cause__, (pg.SerializationFailure, pg.DeadlockDetected)) or not left:
                raise
            logger.warning("a unit runs again after %s", type(exc.__cause__).__name__)
    raise AssertionError("unreachable")


@dataclass(slots=True)
class Intervention(Generic[R]):
    """An open change from outside: the run's row, locked, and the events it will leave."""

    run: R
    events: list[EventRecord] = field(default_factory=list)

    def record(self, name: EventName, **payload: Any) -> None:
        """Write an event when the change commits; `payload` is plain JSON."""
        self.events.append(EventRecord(name=name, payload=payload))


@contextmanager
def intervention(model: type[R], pk: int) -> Iterator[Intervention[R]]:
    """Change a run from outside: locks the stream's row, then the run's, and writes the events last (design § 5.6).

    Args:
        model: Turn or ExecutionPlan.
        pk: the run; the caller has checked that its user may change it.

    Raises:
        NotVisible: no such run, or it was deleted meanwhile.
    """
    with transaction.atomic():
        try:
            stream_id = model._default_manager.values_list("stream_id", flat=True).get(pk=pk)
            Stream.objects.lock(stream_id)
            run = model._default_manager.select_for_update(no_key=True, of=("self",)).get(pk=pk)
        except ObjectDoesNotExist:
            raise NotVisible(run=f"{model.KIND}:{pk}") from None
        change = Intervention(run=run)
        transaction.on_commit(lambda: wake(stream_id) if change.events else None)
        yield change
        Stream.objects.append(stream_id, change.events, correlation_id=run.correlation_id)


def refuse_inside_transaction() -> None:
    """A wait is about to begin.

    Raises:
        WaitingInsideTransaction: a transaction is open.
    """
    if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
        raise WaitingInsideTransaction


def one_by_one(pks: Iterable[int], change: Callable[[int], bool]) -> list[int]:
    """Change runs from outside, each in a transaction of its own; the keys of those that `change` says it changed.

    One that cannot be changed is logged and left for the next time, so that it does not keep the others from it.

    Raises:
        OperationalError, InterfaceError: the database failed; nothing more would come of it now.
    """
    changed = []
    for pk in list(pks):
        try:
            if change(pk):
                changed.append(pk)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("run %s could not be changed from outside", pk)
    return changed


def release_connection() -> None:
    """Give the connection back to the pool before a wait; waiting inside a transaction is refused.

    Raises:
        WaitingInsideTransaction: a transaction is open; closing would lose its writes without a word.
    """
    refuse_inside_transaction()
    if not connection.in_atomic_block:
        connection.close()
