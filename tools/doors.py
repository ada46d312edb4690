"""A call made at a door without a turn or a step (REST, MCP, the command line, the admin) is a run of its own.

One unit stores it; a guarded one waits for a person and is run by a worker once somebody has decided (design § 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from events.models import Stream
from llm.ports import CancelToken
from llm.types import ToolCall
from observability.correlation import correlated
from prompt.types import Mode
from tools.calls import Outcome
from tools.envelopes import refused, shortened, succeeded
from tools.errors import LeaseLost
from tools.executor import ToolExecutor, answered
from tools.heartbeat import owner_name, watching
from tools.models import Approval, ExecutionStatus, ToolCallRun, ToolExecution
from tools.policies import Checked
from tools.ports import dispatcher
from tools.queries import is_waiting
from tools.runs import RunRef, RunStatus
from tools.types import Envelope, ToolContext, idempotency_key
from tools.units import Arrow, Intervention, Unit, in_unit, intervention, one_by_one, release_connection
from tools.values import clean_text, storable
from workspaces.models import User, Workspace

ROUND, POSITION = 1, 1  # a call has one place


@dataclass(frozen=True, slots=True)
class CallResult:
    """What became of a call.

    Args:
        call: its run.
        envelope: its answer; None while it waits for a person.
        approval: what it waits for.
        execution: its ledger row; None while it waits for a person.
    """

    call: ToolCallRun
    envelope: Envelope | None = None
    approval: Approval | None = None
    execution: ToolExecution | None = None


def call_tool(
    *,
    executor: ToolExecutor,
    user: User,
    workspace: Workspace,
    name: str,
    arguments: Mapping[str, Any],
    door: str,
    correlation_id: str,
    clock: Callable[[], datetime],
    ports: Mapping[str, Any] | None = None,
    remember: Callable[[ToolCallRun], None] | None = None,
) -> CallResult:
    """Call one tool for a user, in this process; every policy holds as in a conversation (CAP-030 – 036).

    Args:
        executor: the door's identity and mode.
        user: who calls; the door has authenticated him.
        workspace: one of his; being no member blocks the call.
        name, arguments: what the client sent.
        door: `rest`, `mcp`, `command` or `admin`.
        clock: aware UTC time.
        ports: for tools of upper rooms, by name.
        remember: told the new call in the transaction that makes it, such as to keep an idempotency key with it.

    Returns:
        The answer, or what the call waits for; neither when it goes on in another process.
    """
    with transaction.atomic():
        call = ToolCallRun.objects.create(
            workspace=workspace,
            stream=Stream.objects.create(workspace=workspace),
            correlation_id=correlation_id,
            status=ToolCallRun.READY,
            user=user,
            identity=executor.identity.name,
            mode=executor.mode,
            door=door,
            tool_name=clean_text(name)[:128],
            arguments=storable(dict(arguments), "arguments"),
        )
        claimed = ToolCallRun.objects.claim(call.pk, owner=owner_name())
        if remember is not None:
            remember(call)
    assert claimed is not None, "a new call is free"
    try:
        return _Call(executor, call, RunRef.of(claimed), clock, ports or {}).run(arguments)
    except LeaseLost:  # this process was away for too long; whoever has the call now answers for it
        call.refresh_from_db(fields=("status", "error", "ended_at"))
        return call_result(call)


def run_call(
    call_id: int,
    *,
    executor_of: Callable[[ToolCallRun], ToolExecutor],
    clock: Callable[[], datetime],
    suspect: bool = False,
    ports: Mapping[str, Any] | None = None,
) -> CallResult | None:
    """Run a call in a worker: one that somebody decided about, or whose process died; None when it is not free.

    Args:
        executor_of: builds the executor of the call's identity and mode.
        suspect: take only a call whose last attempts came to nothing.
    """
    call: ToolCallRun | None = ToolCallRun.objects.claim(call_id, owner=owner_name(), suspect=suspect)
    if call is None:
        return None
    with correlated(call.correlation_id):
        try:
            return _Call(executor_of(call), call, RunRef.of(call), clock, ports or {}).run(call.arguments)
        except LeaseLost:
            return None


def call_result(call: ToolCallRun) -> CallResult:
    """What has become of a call by now, read from its rows."""
    place = {"owner_kind": "call", "owner_id": call.pk}
    execution = ToolExecution.objects.filter(**place).first()
    approval = Approval.objects.filter(**place).order_by("-pk").first()
    if execution is None and call.ended:
        return CallResult(call=call, envelope=refused(call.error or "the call never ran"), approval=approval)
    if execution is None or not call.ended:
        return CallResult(call=call, approval=approval)
    good = execution.status == ExecutionStatus.SUCCEEDED
    envelope = succeeded(execution.value()) if good else refused(execution.error)
    return CallResult(call=call, envelope=envelope, approval=approval, execution=execution)


@dataclass(slots=True)
class _Call:
    """One claimed call in this process."""

    executor: ToolExecutor
    call: ToolCallRun
    ref: RunRef
    clock: Callable[[], datetime]
    ports: Mapping[str, Any]

    def run(self, arguments: Mapping[str, Any]) -> CallResult:
        done = self._run(arguments)
        self.call.refresh_from_db(fields=("status", "error", "ended_at"))
        return done

    def _run(self, arguments: Mapping[str, Any]) -> CallResult:
        context = self._context()
        asked = ToolCall(id=f"call-{self.call.pk}", name=self.call.tool_name, arguments=dict(arguments))
        checked = self.executor.check(asked, context)
        if checked.kind == "parked":
            return in_unit(self.ref, lambda unit: self._park(unit, checked, context))
        if checked.kind not in ("read", "external", "write", "handoff"):
            return in_unit(self.ref, lambda unit: self._inside(unit, checked, context))
        limit = checked.spec.timeout_s if checked.spec is not None else 0.0
        deadline_s = limit + settings.CAPSTAN_LEASE_SECONDS
        if checked.kind == "external":
            in_unit(self.ref, lambda unit: self._start(unit, checked, context))
        release_connection()
        with watching(self.ref, cancel=CancelToken(), deadline_s=deadline_s):
            if checked.kind in ("write", "handoff"):
                return in_unit(self.ref, lambda unit: self._inside(unit, checked, context))
            if checked.kind == "read":
                (outcome,) = self.executor.run_reads([(checked, context)])
            else:
                outcome = self.executor.run_external(checked, context)
        return in_unit(self.ref, lambda unit: self._end(unit, checked, context, outcome))

    def _start(self, unit: Unit, checked: Checked, context: ToolContext) -> None:
        unit.progress = False  # opening the call is not yet getting on with it
        self.executor.start_external(unit, checked, context)

    def _inside(self, unit: Unit, checked: Checked, context: ToolContext) -> CallResult:
        outcome = answered(checked) or self.executor.run_in_unit(unit, checked, context)
        return self._end(unit, checked, context, outcome)

    def _end(self, unit: Unit, checked: Checked, context: ToolContext, outcome: Outcome) -> CallResult:
        self.executor.record(unit, checked, context, outcome)
        envelope: Envelope = outcome.envelope
        to = RunStatus.COMPLETED if envelope["success"] else RunStatus.FAILED
        unit.close_with(lambda: Arrow(to, {"error": shortened(envelope["error"] or "")}))
        return CallResult(call=self.call, envelope=envelope, execution=ToolExecution.objects.of_call(context).get())

    def _park(self, unit: Unit, checked: Checked, context: ToolContext) -> CallResult:
        approval = self.executor.park(unit, checked, context)

        def closing() -> Arrow:
            waits = is_waiting("call", self.call.pk)
            if not waits:  # somebody decided while this unit was open
                unit.after_commit(lambda: dispatcher().dispatch_after_commit(self.call))
            return Arrow(RunStatus.WAITING_APPROVAL if waits else self.call.READY)

        unit.close_with(closing)
        return CallResult(call=self.call, approval=approval)

    def _context(self) -> ToolContext:
        call = self.call
        return ToolContext(
            user=call.user,
            workspace=call.workspace,
            identity=self.executor.identity,
            mode=_mode(call.mode),
            owner_kind="call",
            owner_id=call.pk,
            round=ROUND,
            position=POSITION,
            correlation_id=call.correlation_id,
            idempotency_key=idempotency_key("call", call.pk, ROUND, POSITION),
            now=self.clock(),
            stream_id=call.stream_id,
            ports=self.ports,
        )


def fail_spent_calls() -> int:
    """Fail the calls whose attempts are used up; how many (CAP-064)."""

    def fail(pk: int) -> bool:
        with intervention(ToolCallRun, pk):
            if not ToolCallRun.objects.spent().filter(pk=pk).exists():
                return False
            ToolExecution.objects.lose_open("call", [pk])
            return ToolCallRun.objects.move(
                pk, frm=(RunStatus.RUNNING,), to=RunStatus.FAILED, error="run.attempts_used_up"
            )

    return len(one_by_one(ToolCallRun.objects.spent().values_list("pk", flat=True), fail))


class CallOwner:
    """Fills `tools.ports.RunOwner` for calls."""

    def locked(self, owner_id: int) -> AbstractContextManager[Intervention[ToolCallRun]]:
        """Open the change from outside of one call."""
        return intervention(ToolCallRun, owner_id)

    def resume(self, change: Intervention[ToolCallRun], owner_id: int) -> None:
        """A call that waits is ready again, and a worker is told."""
        if ToolCallRun.objects.move(owner_id, frm=(RunStatus.WAITING_APPROVAL,), to=ToolCallRun.READY):
            dispatcher().dispatch_after_commit(change.run)


def _mode(stored: str) -> Mode:
    return "conversation" if stored == "conversation" else "workflow"
