"""What every policy says about one call, in this order: exposure, permission, guard, approval, identity (design § 5.3).

A call that was cut off by a crash is looked for first among the external ones: it is never run again blindly.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Literal

from context.models import ScopeVersion
from llm.types import ToolCall
from prompt.types import Mode
from tools import approvals
from tools.budgets import over_budget
from tools.envelopes import refused, succeeded
from tools.errors import InvalidArguments
from tools.exposure import guarded, refusal
from tools.membership import is_member
from tools.models import Approval, ApprovalStatus, ExecutionStatus, Question, ToolExecution
from tools.registry import Registry
from tools.types import Arguments, Envelope, ToolContext, ToolSpec
from tools.values import digest, storable
from workspaces.models import User
from workspaces.permissions import may

logger = logging.getLogger(__name__)

Kind = Literal["read", "write", "external", "handoff", "blocked", "parked", "cached"]

UNANSWERED = "the process was cut off while this call ran; whether it took effect is not known, and nobody could tell"


@dataclass(frozen=True, slots=True)
class Checked:
    """A call that the policies have seen.

    Args:
        kind: how it goes on: the effect to run with, `handoff`, or `blocked`, `parked`, `cached` (not run).
        spec: the tool; None for one that is not known.
        arguments: typed values and what the ledger keeps.
        envelope: the answer of a blocked or cached call.
        scope_version: of the workspace, before the call reads; None where no cache is kept.
        approval: what lets the call run, or why it does not.
        standing: the approval was for another call and covers this one.
        question: what a parked call waits for.
        probe: ask the tool's probe first, because the call may have happened.
        settled: the ledger has this call's outcome already.
    """

    call: ToolCall
    kind: Kind
    spec: ToolSpec | None
    arguments: Arguments
    envelope: Envelope | None = None
    scope_version: int | None = None
    approval: Approval | None = field(default=None, repr=False)
    standing: bool = False
    question: Question = Question.RUN
    probe: bool = False
    settled: bool = False

    @property
    def digest(self) -> str:
        return digest(self.arguments.stored)

    @property
    def effect(self) -> str:
        return self.spec.effect if self.spec is not None else ""


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one identity in one mode; nothing here changes a row."""

    registry: Registry
    exposed: frozenset[str]
    mode: Mode

    def check(self, call: ToolCall, context: ToolContext) -> Checked:
        """Ask every policy about one call; permissions are read from the database now."""
        spec = self.registry.get(call["name"])
        reason = refusal(call["name"], spec, self.exposed, context, mode=self.mode)
        if reason is None and spec is not None:
            reason = _not_permitted(spec, context) or guarded(spec, context.identity) or over_budget(context)
        if reason is not None or spec is None:
            return _blocked(call, spec, reason or "no such tool")
        if "arguments_error" in call:
            return _blocked(call, spec, call["arguments_error"])
        try:
            arguments = spec.signature.parse(call["arguments"])
        except InvalidArguments as exc:
            return _blocked(call, spec, exc.problems)
        if arguments.dropped:
            logger.warning("the model sent %s to %s; the server sets that", ", ".join(arguments.dropped), spec.name)
        checked = Checked(call=call, kind="handoff" if spec.handoff else spec.effect, spec=spec, arguments=arguments)
        if spec.effect == "external":
            checked = _after_a_crash(checked, spec, context)
            if checked.kind != "external":
                return checked
        ruled = _ruled(checked, spec, context)
        if ruled.kind == "read" and context.plan_id is not None:
            return _from_cache(ruled, context.plan_id, context)
        return ruled


def _not_permitted(spec: ToolSpec, context: ToolContext) -> str | None:
    if spec.permission is None:
        member = is_member(context.user.pk, context.workspace.pk)
        return None if member else "the user is no active member of this workspace"
    user = User.objects.filter(pk=context.user.pk).first()  # the caller's may have been read long ago
    if user is not None and may(user, spec.permission, workspace=context.workspace):
        return None
    return f"the user does not hold the permission {spec.permission} in this workspace"


def _ruled(checked: Checked, spec: ToolSpec, context: ToolContext) -> Checked:
    """The call with what people said about it; an approved one runs with the approved arguments only."""
    ruling = approvals.rule(spec, checked.digest, context)
    if ruling.waits:
        return replace(checked, kind="parked")
    if ruling.refusal:
        return replace(checked, kind="blocked", envelope=refused(ruling.refusal), approval=ruling.approval)
    if ruling.approval is None:
        return checked
    arguments = checked.arguments
    if not ruling.standing:
        try:
            arguments = spec.signature.parse(ruling.approval.approved_arguments)
        except InvalidArguments as exc:  # the tool has changed since it was approved
            return replace(checked, kind="blocked", envelope=refused(exc.problems), approval=ruling.approval)
    return replace(checked, arguments=arguments, approval=ruling.approval, standing=ruling.standing)


def _after_a_crash(checked: Checked, spec: ToolSpec, context: ToolContext) -> Checked:
    """How an external call goes on that the ledger knows already, at its own place or where its run was copied from."""
    row = ToolExecution.objects.of_call(context).first()
    if row is None:
        row = ToolExecution.objects.same_elsewhere(context, spec.name)
        if row is None or row.status == ExecutionStatus.FAILED:
            return checked
        if row.status == ExecutionStatus.SUCCEEDED and row.arguments_digest != checked.digest:
            return checked
    if row.status in (ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED):
        envelope = succeeded(row.value()) if row.status == ExecutionStatus.SUCCEEDED else refused(row.error)
        return replace(checked, kind="cached", envelope=envelope, settled=True)
    if row.status == ExecutionStatus.BLOCKED:
        return replace(checked, kind="blocked", envelope=refused(row.error), settled=True)
    if spec.idempotent or spec.probe is not None:
        return replace(checked, probe=spec.probe is not None)
    asked = Approval.objects.of_call(context).filter(question=Question.HAPPENED).first()
    if asked is None or asked.status == ApprovalStatus.PENDING:
        return replace(checked, kind="parked", question=Question.HAPPENED)
    return replace(checked, kind="blocked", envelope=refused(UNANSWERED), settled=True)


def _from_cache(checked: Checked, plan_id: int, context: ToolContext) -> Checked:
    """The plan's own earlier answer to the same call, unless something was written since (CAP-035)."""
    version = ScopeVersion.objects.current(context.workspace.pk)
    found = ToolExecution.objects.cached_read(
        plan_id=plan_id, tool_name=checked.call["name"], digest=checked.digest, scope_version=version
    )
    if found is None:
        return replace(checked, scope_version=version)
    return replace(checked, kind="cached", envelope=succeeded(found.value()))


def _blocked(call: ToolCall, spec: ToolSpec | None, error: str) -> Checked:
    arguments = Arguments(values={}, stored=storable(call["arguments"], "arguments"))
    return Checked(call=call, kind="blocked", spec=spec, arguments=arguments, envelope=refused(error))
