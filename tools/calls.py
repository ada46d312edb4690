"""The three ways a tool runs: a read beside the unit, a call inside it, a call to the world outside (design § 5.3)."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from tools.connections import close_connections, inside_savepoint, read_only_connections
from tools.envelopes import causes, described, must_rerun, refused, succeeded, timed_out
from tools.errors import LeaseLost, OutcomeUnknown
from tools.models import ExecutionStatus
from tools.threads import tool_threads
from tools.types import Envelope, ToolContext, ToolSpec, UnitOfWork
from tools.units import release_connection
from tools.values import storable
from workspaces.errors import CapstanError

logger = logging.getLogger(__name__)

INSTANT_S = 0.02


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to.

    Args:
        envelope: what every call answers.
        duration_ms: wall clock.
        status: succeeded, failed, unknown or blocked, as the ledger keeps it.
    """

    envelope: Envelope
    duration_ms: int
    status: str


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that was started in a thread of its own."""

    future: Future[Any]
    spec: ToolSpec
    started: float

    def done_within(self, seconds: float) -> bool:
        """Whether the call is back by then; waits no longer than that."""
        try:
            self.future.exception(timeout=max(0.0, seconds))
        except TimeoutError:
            return False
        return True

    def outcome(self, *, late: str) -> Outcome:
        """Wait until the call ends or its time is up; what comes later is thrown away.

        Args:
            late: the ledger's status of a call that is not back in time.
        """
        if not self.done_within(self.started + self.spec.timeout_s - time.monotonic()):
            self.future.cancel()
            logger.warning("tool %s is not back after %g s", self.spec.name, self.spec.timeout_s)
            return _ended(self.started, refused(f"timed out after {self.spec.timeout_s:g} s"), late)
        try:
            result = self.future.result()
        except (Exception, SystemExit, KeyboardInterrupt) as exc:  # noqa: BLE001  # nothing a tool does ends the loop
            return _failure(self.started, self.spec, exc, late=late)
        return _ended(self.started, succeeded(result), ExecutionStatus.SUCCEEDED)


def ended_at_once(batch: Sequence[Pending]) -> bool:
    """Whether all of them end within an instant: too short to give a connection back and ask for one again."""
    until = time.monotonic() + INSTANT_S
    return all(pending.done_within(until - time.monotonic()) for pending in batch)


def start_read(spec: ToolSpec, values: Mapping[str, Any], context: ToolContext) -> Pending:
    """Start a read on a read-only connection of its own."""

    def read() -> Any:
        with read_only_connections(spec.timeout_s):
            return storable(spec.signature.call(spec.fn, values, context))

    return Pending(future=tool_threads.submit(read), spec=spec, started=time.monotonic())


def run_read(spec: ToolSpec, values: Mapping[str, Any], context: ToolContext) -> Outcome:
    """Run one read within its time; the caller's connection is given back only when it takes longer than an instant."""
    pending = start_read(spec, values, context)
    if not ended_at_once([pending]):
        release_connection()
    return pending.outcome(late=ExecutionStatus.FAILED)


def start_outside(
    spec: ToolSpec, values: Mapping[str, Any], context: ToolContext, *, probe_first: bool = False
) -> Pending:
    """Start an external call, outside any transaction.

    Args:
        probe_first: a crash cut the call off; run it only when the tool's probe says that it did not happen.
    """

    def call() -> Any:
        try:
            if probe_first and spec.probe is not None:
                found = spec.probe(context, **values)
                if found is not None:
                    return storable(found)
            return storable(spec.signature.call(spec.fn, values, context))
        finally:
            close_connections()

    return Pending(future=tool_threads.submit(call), spec=spec, started=time.monotonic())


def run_inside(
    unit: UnitOfWork, spec: ToolSpec, values: Mapping[str, Any], context: ToolContext, *, read_only: bool
) -> Outcome:
    """Run a call inside the unit's transaction, in a savepoint: it leaves its rows and events, or nothing.

    Raises:
        LeaseLost: the run has another owner.
        OperationalError: a deadlock or a serialization failure; the unit must run again.
    """
    started = time.monotonic()
    mark = len(unit.events)
    inside = dataclasses.replace(context, events=unit)
    try:
        with transaction.atomic(), inside_savepoint(spec.timeout_s, read_only=read_only):
            result = storable(spec.signature.call(spec.fn, values, inside))
    except LeaseLost:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as exc:
        if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # a person's, at the command line
        del unit.events[mark:]
        if must_rerun(exc):
            raise
        return _failure(started, spec, exc, late=ExecutionStatus.FAILED)
    if not read_only and spec.domain:
        unit.bump(context.workspace.pk)
    return _ended(started, succeeded(result), ExecutionStatus.SUCCEEDED)


def _failure(started: float, spec: ToolSpec, exc: BaseException, *, late: str) -> Outcome:
    unknown = late == ExecutionStatus.UNKNOWN and (
        timed_out(exc) or any(isinstance(cause, (OutcomeUnknown, TimeoutError)) for cause in causes(exc))
    )
    log: Callable[..., None] = logger.info if isinstance(exc, CapstanError) else logger.warning
    log("tool %s failed: %s", spec.name, type(exc).__name__)
    status = ExecutionStatus.UNKNOWN if unknown else ExecutionStatus.FAILED
    return _ended(started, refused(described(exc, timeout_s=spec.timeout_s)), status)


def _ended(started: float, envelope: Envelope, status: str) -> Outcome:
    return Outcome(envelope=envelope, duration_ms=round((time.monotonic() - started) * 1000), status=status)
