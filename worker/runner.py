"""Runs plans: claims one, runs its ready steps, and leaves it between steps or rounds (CAP-060).

The rows decide everything. A process that dies here loses at most the round that was open; the sweep hands the plan to
another one, which goes on from the journal.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from django.conf import settings
from django.db import connection

from llm.ports import CancelToken
from observability.correlation import correlated
from plan.models import ExecutionPlan, PlanStep
from plan.services import Settled
from tools.errors import LeaseLost
from tools.heartbeat import owner_name, watching
from tools.runs import TERMINAL, RunRef, RunStatus
from tools.units import Arrow, release_connection
from worker import shutdown
from worker.steps import Agents, StepRunner

logger = logging.getLogger(__name__)

SLICE_S = 60.0
SIDE_BY_SIDE = 4  # steps of one plan at once
LOOK_AGAIN_S = 1.0  # a step may become ready from outside: a decision, a wait that ends, an adapted plan
OPENING_S = 120.0  # to take a plan over and make its first agent, vendors' SDKs loaded; each step then has its own time
ENDS_WITHIN_S = 5.0  # steps whose plan has left under them are waited for so long


class Left(StrEnum):
    """How the worker left a plan."""

    NOT_FREE = "not_free"
    LOST = "lost"
    HANDED_BACK = "handed_back"
    WAITING = "waiting"
    ENDED = "ended"


def execute_plan(
    *, plan_id: int, agents: Agents, clock: Callable[[], datetime], suspect: bool = False, slice_s: float = SLICE_S
) -> Left:
    """Run a plan until it ends, waits or its slice is over.

    Args:
        agents: makes the agent that runs a step.
        clock: aware UTC time.
        suspect: take only a plan whose last attempts came to nothing, and leave it at the first progress.
        slice_s: how long other plans wait for this one, seconds.

    Returns:
        How the plan was left. One that is not free, because it ended, waits or has an owner, is left alone.

    Source: CAP-060, CAP-063.
    """
    if shutdown.begun():
        return Left.NOT_FREE
    plan = ExecutionPlan.objects.claim(plan_id, owner=owner_name(), suspect=suspect)
    if plan is None:
        return Left.NOT_FREE
    with correlated(plan.correlation_id):
        ride = _Ride(plan, RunRef.of(plan), agents, clock, suspect, time.monotonic() + slice_s)
        left = ride.drive()
        logger.info("plan %s left: %s", plan_id, left)
    return left


@dataclass(slots=True)
class _Ride:
    """One claimed plan in this process."""

    plan: ExecutionPlan
    run: RunRef
    agents: Agents
    clock: Callable[[], datetime]
    suspect: bool
    over_at: float
    cancel: CancelToken = field(default_factory=CancelToken)
    _active: int = 0
    _ends: queue.SimpleQueue[Settled | BaseException] = field(default_factory=queue.SimpleQueue)

    def drive(self) -> Left:
        limit: int = getattr(settings, "CAPSTAN_PLAN_SIDE_BY_SIDE", SIDE_BY_SIDE)
        with watching(self.run, cancel=self.cancel, deadline_s=OPENING_S) as watch:
            steps = StepRunner(
                plan=self.plan,
                run_ref=self.run,
                agents=self.agents,
                clock=self.clock,
                cancel=self.cancel,
                extend=watch.extend,
                leaving=lambda: self.suspect or self._leaving(),
                slots=lambda: 0 if self.suspect or self._leaving() else limit,
            )
            try:
                return self._go_on(steps, steps.take_over(slots=1 if self.suspect else limit))
            except LeaseLost:
                return Left.LOST
            finally:
                self.cancel.cancel("lease_lost")  # what still runs here runs for nobody
                self._drain()

    def _go_on(self, steps: StepRunner, settled: Settled) -> Left:
        while settled.arrow is None:
            ready = settled.started
            if len(ready) == 1 and not self._active and steps.is_quick(ready[0]):
                settled = steps.run(ready[0])
                continue
            for step in ready:
                self._start(steps, step)
            settled = self._next_end(steps) if self._active else steps.take_over(slots=0)
        return _left_by(settled.arrow)

    def _leaving(self) -> bool:
        return shutdown.begun() or time.monotonic() >= self.over_at

    def _start(self, steps: StepRunner, step: PlanStep) -> None:
        def body() -> None:
            try:
                with correlated(self.plan.correlation_id):
                    self._ends.put(steps.run(step))
            except BaseException as exc:  # noqa: BLE001  # raised again in the thread that drives the plan
                self._ends.put(exc)
            finally:
                connection.close()

        self._active += 1
        threading.Thread(target=body, name=f"plan-{self.plan.pk}-{step.key}", daemon=True).start()

    def _next_end(self, steps: StepRunner) -> Settled:
        """Wait for a step to end, or for one to become ready from outside."""
        while True:
            release_connection()
            try:
                end = self._ends.get(timeout=LOOK_AGAIN_S)
            except queue.Empty:
                if steps.something_new():
                    return steps.look_again()
                continue
            self._active -= 1
            if isinstance(end, BaseException):
                raise end
            return end

    def _drain(self) -> None:
        until = time.monotonic() + ENDS_WITHIN_S
        while self._active and time.monotonic() < until:
            try:
                self._ends.get(timeout=0.1)
            except queue.Empty:
                continue
            self._active -= 1


def _left_by(arrow: Arrow) -> Left:
    if arrow.to in TERMINAL:
        return Left.ENDED
    return Left.HANDED_BACK if arrow.to == RunStatus.PENDING else Left.WAITING
