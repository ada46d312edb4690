"""Celery's way in: read the clock, make one call. A message names a run; whether it is run, the claim decides."""

from __future__ import annotations

import time

from celery import shared_task
from celery.exceptions import Reject
from django.utils import timezone

from chat import runner as turn_runner
from factory.agents import create_agent
from factory.executors import build_executor
from prompt.types import Mode
from tools import doors
from tools.executor import ToolExecutor
from tools.models import ToolCallRun
from tools.runs import database_now
from worker import recovery, runner, shutdown


@shared_task(name="worker.execute_plan", acks_late=True, ignore_result=True)
def execute_plan(plan_id: int, *, suspect: bool = False, **_later: object) -> None:
    """Run a plan's ready steps (CAP-060). `_later`: a newer web process may send more."""
    _refuse_when_stopping()
    runner.execute_plan(plan_id=plan_id, agents=create_agent, clock=timezone.now, suspect=suspect)


@shared_task(name="worker.run_turn", acks_late=True, ignore_result=True)
def run_turn(turn_id: int, *, suspect: bool = False, **_later: object) -> None:
    """Run a turn that no request runs."""
    _refuse_when_stopping()
    turn_runner.run_turn(turn_id, agents=create_agent, clock=timezone.now, suspect=suspect)


@shared_task(name="worker.run_call", acks_late=True, ignore_result=True)
def run_call(call_id: int, *, suspect: bool = False, **_later: object) -> None:
    """Run a tool call that was made at a door, once a person has decided about it or its process has died."""
    _refuse_when_stopping()
    doors.run_call(call_id, executor_of=_executor_of, clock=timezone.now, suspect=suspect)


def _executor_of(call: ToolCallRun) -> ToolExecutor:
    mode: Mode = "conversation" if call.mode == "conversation" else "workflow"
    return build_executor(call.identity, mode=mode, workspace=call.workspace)


@shared_task(name="worker.sweep", acks_late=True, ignore_result=True)
def sweep(**_later: object) -> None:
    """Wake what nobody works on, and end what nobody will (CAP-064)."""
    if recovery.pace.due(time.monotonic()):
        recovery.sweep(now=database_now())


def _refuse_when_stopping() -> None:
    """A stopping worker puts a message back that reached it meanwhile: another one takes it."""
    if shutdown.begun():
        raise Reject("this worker is stopping", requeue=True)
