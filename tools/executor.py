"""The one way in to every tool, for every door (CAP-030 – 036, CAP-039; design § 2.4).

A call is checked (exposure, permission, guard, approval, identity), run in the way its effect asks for, and put on the
ledger. Nothing a tool does comes out as an exception: every call answers an envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import OperationalError, transaction

from context.models import ScopeVersion
from events.models import EventRecord
from events.types import EventName
from llm.types import ToolCall, ToolSchema
from prompt.types import AgentIdentity, Mode
from tools import approvals, ledger
from tools.calls import Outcome, Pending, ended_at_once, run_inside, run_read, start_outside, start_read
from tools.envelopes import must_rerun, refused
from tools.exposure import exposed
from tools.models import Approval, ExecutionStatus, Question, ToolExecution
from tools.policies import Checked, Kind, Policies
from tools.registry import Registry
from tools.results import told
from tools.runs import RunRef
from tools.types import Envelope, ToolContext, ToolSpec, UnitOfWork
from tools.units import RERUNS, in_unit, refuse_inside_transaction, release_connection

__all__ = ["Checked", "Kind", "Outcome", "ToolExecutor"]


@dataclass(slots=True)
class _OwnUnit:
    """The transaction of a call that has no run: what it wrote is bumped, what it recorded has no stream to go to."""

    events: list[EventRecord] = field(default_factory=list)
    scopes: set[int] = field(default_factory=set)

    def record(self, name: EventName, **payload: Any) -> None:
        self.events.append(EventRecord(name=name, payload=payload))

    def bump(self, workspace_id: int) -> None:
        self.scopes.add(workspace_id)


class ToolExecutor:
    """Checks, runs and records the calls of one identity in one mode.

    Args:
        registry: which tools there are.
        identity: who calls; its `allowed_tools` bound what is exposed.
        mode: `conversation` or `workflow` (CAP-039).
    """

    def __init__(self, registry: Registry, identity: AgentIdentity, *, mode: Mode) -> None:
        self.registry = registry
        self.identity = identity
        self.mode = mode
        self._exposed = exposed(registry, identity, mode=mode)
        self._policies = Policies(registry=registry, exposed=self._exposed, mode=mode)
        self._schemas = tuple(
            ToolSchema(name=spec.name, description=spec.description, input_schema=dict(spec.input_schema))
            for spec in registry
            if spec.name in self._exposed
        )

    def exposed_names(self) -> frozenset[str]:
        """What the model may call, fixed by identity and mode."""
        return self._exposed

    def schemas(self) -> tuple[ToolSchema, ...]:
        """The canonical schemas of the exposed tools, sorted by name."""
        return self._schemas

    def check(self, call: ToolCall, context: ToolContext) -> Checked:
        """Ask every policy about one call; permissions are read from the database now.

        Returns:
            How the call goes on; `blocked` with the error the model reads when a policy says no.
        """
        return self._policies.check(call, context)

    def run_reads(self, reads: Sequence[tuple[Checked, ToolContext]]) -> list[Outcome]:
        """Run reads side by side, no transaction open, each on a read-only connection of its own; results in order.

        Raises:
            WaitingInsideTransaction: a transaction is open.
        """
        refuse_inside_transaction()
        outcomes: list[Outcome] = []
        width = max(1, self.identity.limits.parallel_reads)
        for start in range(0, len(reads), width):
            batch: list[Pending] = [
                start_read(_spec(checked), checked.arguments.values, context)
                for checked, context in reads[start : start + width]
            ]
            if not ended_at_once(batch):
                release_connection()
            outcomes += [pending.outcome(late=ExecutionStatus.FAILED) for pending in batch]
        return outcomes

    def run_read(self, checked: Checked, context: ToolContext) -> Outcome:
        """Run one read within its time; the connection is given back only when it takes longer than an instant."""
        return run_read(_spec(checked), checked.arguments.values, context)

    def run_in_unit(self, unit: UnitOfWork, checked: Checked, context: ToolContext) -> Outcome:
        """Run a write, a handoff or a read inside the open unit, in a savepoint.

        Raises:
            LeaseLost: the run has another owner.
            OperationalError: a deadlock or a serialization failure; `in_unit` runs the unit again.
        """
        spec = _spec(checked)
        return run_inside(unit, spec, checked.arguments.values, context, read_only=spec.effect == "read")

    def start_external(self, unit: UnitOfWork, checked: Checked, context: ToolContext) -> None:
        """Put an external call on the ledger as started; the unit must commit before `run_external`."""
        ledger.start(checked.call["name"], checked.effect, checked.arguments.stored, checked.digest, context)

    def run_external(self, checked: Checked, context: ToolContext) -> Outcome:
        """Run an external call outside any transaction; one that is not back in time has an unknown outcome.

        Raises:
            WaitingInsideTransaction: a transaction is open.
        """
        release_connection()
        pending = start_outside(_spec(checked), checked.arguments.values, context, probe_first=checked.probe)
        return pending.outcome(late=ExecutionStatus.UNKNOWN)

    def park(self, unit: UnitOfWork, checked: Checked, context: ToolContext) -> Approval:
        """Ask a person about a parked call: the approval and its event commit with the unit that parks the run."""
        if checked.spec is None or checked.kind != "parked":
            raise ValueError(f"a {checked.kind} call does not wait for a person")
        if checked.question == Question.HAPPENED:
            ledger.start(checked.call["name"], checked.effect, checked.arguments.stored, checked.digest, context)
            ToolExecution.objects.lose(context)
        return approvals.ask(
            unit, checked.spec, checked.arguments.stored, checked.digest, context, question=checked.question
        )

    def record(self, unit: UnitOfWork, checked: Checked, context: ToolContext, outcome: Outcome) -> str:
        """Write or complete the call's ledger row, and close the approval that let it run.

        Returns:
            What the model reads: the result as JSON, marked as data; of a big one head, tail and a handle.
        """
        if checked.settled:
            return told(checked.call["name"], outcome.envelope)
        blocked = checked.kind == "blocked"
        if blocked and ToolExecution.objects.was_begun(context):  # before the rights to it were withdrawn
            ToolExecution.objects.lose(context)
            return told(checked.call["name"], outcome.envelope)
        if checked.approval is not None and not checked.standing and not blocked:
            Approval.objects.carry_out(checked.approval.pk, succeeded=outcome.envelope["success"])
        entry = ledger.Entry(
            tool_name=checked.call["name"],
            effect=checked.effect,
            arguments=checked.arguments.stored,
            digest=checked.digest,
            envelope=outcome.envelope,
            status=ExecutionStatus.BLOCKED if blocked else outcome.status,
            duration_ms=outcome.duration_ms,
            cached=checked.kind == "cached",
            scope_version=checked.scope_version,
            approval_id=checked.approval.pk if checked.approval is not None else None,
        )
        return ledger.record(entry, context, started=checked.kind == "external")

    def execute(self, call: ToolCall, *, context: ToolContext, run: RunRef | None = None) -> Envelope:
        """Check, run and record one call at a door without a loop: in units of `run`, or in transactions of its own.

        A call that has to wait for a person is refused here: only a run can wait.
        """
        checked = self.check(call, context)
        if checked.kind == "parked":
            return refused("this call waits for a person, and nothing here could wait for it")
        if checked.kind in ("read", "external"):
            if checked.kind == "external":
                self._commit(run, lambda unit: self.start_external(unit, checked, context))
                outcome = self.run_external(checked, context)
            else:
                (outcome,) = self.run_reads([(checked, context)])
            self._commit(run, lambda unit: self.record(unit, checked, context, outcome))
            return outcome.envelope
        results: list[Outcome] = []

        def body(unit: UnitOfWork) -> None:
            outcome = answered(checked) or self.run_in_unit(unit, checked, context)
            self.record(unit, checked, context, outcome)
            results.append(outcome)

        self._commit(run, body)
        return results[-1].envelope

    def _commit(self, run: RunRef | None, body: Callable[[UnitOfWork], Any]) -> None:
        if run is not None:
            in_unit(run, body)
            return
        for left in range(RERUNS, -1, -1):
            try:
                with transaction.atomic():
                    own = _OwnUnit()
                    body(own)
                    ScopeVersion.objects.bump(own.scopes)
                return
            except OperationalError as exc:
                if not must_rerun(exc) or not left:
                    raise


def answered(checked: Checked) -> Outcome | None:
    """The outcome of a call that was answered without running; None for one that has to run."""
    if checked.envelope is None:
        return None
    status = ExecutionStatus.BLOCKED if checked.kind == "blocked" else ExecutionStatus.SUCCEEDED
    return Outcome(envelope=checked.envelope, duration_ms=0, status=status)


def _spec(checked: Checked) -> ToolSpec:
    if checked.spec is None or checked.envelope is not None or checked.kind == "parked":
        raise ValueError(f"a {checked.kind} call is not run")
    return checked.spec
