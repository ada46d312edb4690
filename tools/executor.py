"""The one way in to every tool, for every door (CAP-030 – 036, CAP-039; design § 2.4).

A call is checked (exposure, permission, guard, approval, identity), run in the way its effect asks for, and put on the
ledger. Nothing a tool does comes out as an exception: every call answers an envelope.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from django.db import OperationalError, transaction

from context.models import ScopeVersion
from llm.types import ToolCall, ToolSchema
from prompt.types import AgentIdentity, Mode
from tools import ledger
from tools.calls import Outcome, Pending, run_inside, start_outside, start_read
from tools.envelopes import must_rerun, refused
from tools.errors import InvalidArguments
from tools.exposure import exposed, guarded, refusal
from tools.models import ExecutionStatus, ToolExecution
from tools.registry import Registry
from tools.runs import RunRef
from tools.types import Arguments, Envelope, ToolContext, ToolSpec, UnitOfWork
from tools.units import RERUNS, in_unit, release_connection
from tools.values import digest, storable
from workspaces.models import Membership
from workspaces.permissions import may

logger = logging.getLogger(__name__)

Kind = Literal["read", "write", "external", "handoff", "blocked", "parked", "cached"]


@dataclass(frozen=True, slots=True)
class Checked:
    """A call that the policies have seen.

    Args:
        kind: how it goes on: the effect to run with, `handoff`, or `blocked`, `parked`, `cached` (not run).
        spec: the tool; None for one that is not known.
        arguments: typed values and what the ledger keeps.
        envelope: the answer of a blocked or cached call.
        scope_version: of the workspace, before the call reads; None where no cache is kept.
    """

    call: ToolCall
    kind: Kind
    spec: ToolSpec | None
    arguments: Arguments
    envelope: Envelope | None = None
    scope_version: int | None = None

    @property
    def digest(self) -> str:
        return digest(self.arguments.stored)


@dataclass(slots=True)
class _OwnUnit:
    """The transaction of a call that has no run: what it wrote is bumped, what it recorded has no stream to go to."""

    events: list[ledger.EventRecord] = field(default_factory=list)
    scopes: set[int] = field(default_factory=set)

    def record(self, name: ledger.EventName, **payload: object) -> None:
        self.events.append(ledger.EventRecord(name=name, payload=payload))

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
        spec = self.registry.get(call["name"])
        reason = refusal(call["name"], spec, self._exposed, context, mode=self.mode)
        if reason is None and spec is not None:
            reason = _not_permitted(spec, context) or guarded(spec, context.identity)
        if reason is not None or spec is None:
            return self._blocked(call, spec, reason or "no such tool")
        if "arguments_error" in call:
            return self._blocked(call, spec, call["arguments_error"])
        try:
            arguments = spec.signature.parse(call["arguments"])
        except InvalidArguments as exc:
            return self._blocked(call, spec, exc.problems)
        if arguments.dropped:
            logger.warning("the model sent %s to %s; the server sets that", ", ".join(arguments.dropped), spec.name)
        kind: Kind = "handoff" if spec.handoff else spec.effect
        checked = Checked(call=call, kind=kind, spec=spec, arguments=arguments)
        if kind == "read" and context.plan_id is not None:
            return self._from_cache(checked, context)
        if kind == "external":
            return self._after_a_crash(checked, context)
        return checked

    def run_reads(self, reads: Sequence[tuple[Checked, ToolContext]]) -> list[Outcome]:
        """Run reads side by side, no transaction open, each on a read-only connection of its own; results in order.

        Raises:
            WaitingInsideTransaction: a transaction is open.
        """
        release_connection()
        outcomes: list[Outcome] = []
        width = max(1, self.identity.limits.parallel_reads)
        for start in range(0, len(reads), width):
            batch: list[Pending] = [
                start_read(_spec(checked), checked.arguments.values, context)
                for checked, context in reads[start : start + width]
            ]
            outcomes += [pending.outcome(late=ExecutionStatus.FAILED) for pending in batch]
        return outcomes

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
        ledger.start(checked.call["name"], _effect(checked), checked.arguments.stored, checked.digest, context)

    def run_external(self, checked: Checked, context: ToolContext) -> Outcome:
        """Run an external call outside any transaction; one that is not back in time has an unknown outcome.

        Raises:
            WaitingInsideTransaction: a transaction is open.
        """
        release_connection()
        return start_outside(_spec(checked), checked.arguments.values, context).outcome(late=ExecutionStatus.UNKNOWN)

    def record(self, unit: UnitOfWork, checked: Checked, context: ToolContext, outcome: Outcome) -> str:
        """Write or complete the call's ledger row.

        Returns:
            What the model reads: the result as JSON, marked as data.
        """
        entry = ledger.Entry(
            tool_name=checked.call["name"],
            effect=_effect(checked),
            arguments=checked.arguments.stored,
            digest=checked.digest,
            envelope=outcome.envelope,
            status=ExecutionStatus.BLOCKED if checked.kind == "blocked" else outcome.status,
            duration_ms=outcome.duration_ms,
            cached=checked.kind == "cached",
            scope_version=checked.scope_version,
        )
        return ledger.record(entry, context, started=checked.kind == "external")

    def execute(self, call: ToolCall, *, context: ToolContext, run: RunRef | None = None) -> Envelope:
        """Check, run and record one call at a door without a loop: one unit of `run`, or a transaction of its own."""
        checked = self.check(call, context)
        if checked.kind == "parked":
            return refused("this call waits for a person, and there is no run that could wait for it")
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
            if checked.envelope is not None:
                status = ExecutionStatus.BLOCKED if checked.kind == "blocked" else ExecutionStatus.SUCCEEDED
                outcome = Outcome(envelope=checked.envelope, duration_ms=0, status=status)
            else:
                outcome = self.run_in_unit(unit, checked, context)
            self.record(unit, checked, context, outcome)
            results.append(outcome)

        self._commit(run, body)
        return results[-1].envelope

    def _commit(self, run: RunRef | None, body: ledger.Body) -> None:
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

    def _blocked(self, call: ToolCall, spec: ToolSpec | None, error: str) -> Checked:
        arguments = Arguments(values={}, stored=storable(call["arguments"], "arguments"))
        return Checked(call=call, kind="blocked", spec=spec, arguments=arguments, envelope=refused(error))

    def _from_cache(self, checked: Checked, context: ToolContext) -> Checked:
        """The plan's own earlier answer to the same call, unless something was written since (CAP-035)."""
        assert context.plan_id is not None
        version = ScopeVersion.objects.current(context.workspace.pk)
        found = ToolExecution.objects.cached_read(
            plan_id=context.plan_id, tool_name=checked.call["name"], digest=checked.digest, scope_version=version
        )
        if found is None:
            return replace(checked, scope_version=version)
        return replace(checked, kind="cached", envelope=Envelope(success=True, result=found.value(), error=None))

    def _after_a_crash(self, checked: Checked, context: ToolContext) -> Checked:
        """A call that was started and never ended is run again only when its tool is idempotent."""
        spec = _spec(checked)
        left_open = ToolExecution.objects.of_call(context).filter(status=ExecutionStatus.STARTED)
        if spec.idempotent or not left_open.exists():
            return checked
        error = "the process was cut off while this call ran; whether it took effect is not known"
        return replace(checked, kind="blocked", envelope=refused(error))


def _not_permitted(spec: ToolSpec, context: ToolContext) -> str | None:
    if spec.permission is None:
        member = Membership.objects.filter(
            user_id=context.user.pk, workspace_id=context.workspace.pk, user__is_active=True
        ).exists()
        return None if member else "the user is no active member of this workspace"
    if may(context.user, spec.permission, workspace=context.workspace):
        return None
    return f"the user does not hold the permission {spec.permission} in this workspace"


def _spec(checked: Checked) -> ToolSpec:
    if checked.spec is None or checked.envelope is not None:
        raise ValueError(f"a {checked.kind} call is not run")
    return checked.spec


def _effect(checked: Checked) -> str:
    return checked.spec.effect if checked.spec is not None else ""
