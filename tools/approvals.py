"""When a call waits for a person, and what a decision is worth when the call runs (CAP-033)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from events.types import EventName
from prompt.types import AgentIdentity, ApprovalPolicy
from tools.envelopes import shortened
from tools.models import Approval, ApprovalStatus, Question
from tools.runs import database_now
from tools.settings import tool_settings
from tools.types import ToolContext, ToolSpec, UnitOfWork
from tools.values import canonical
from workspaces.models import User
from workspaces.permissions import may

DECIDE = "capstan_tools.decide_approval"


@dataclass(frozen=True, slots=True)
class Ruling:
    """What people said about a call.

    Args:
        waits: somebody has to be asked, or was asked and has not answered.
        refusal: why it must not run; empty when it may.
        approval: what lets it run.
        standing: it lets other calls run too, and its own was another one.
    """

    waits: bool = False
    refusal: str = ""
    approval: Approval | None = None
    standing: bool = False


FREE = Ruling()


def policy_of(spec: ToolSpec, identity: AgentIdentity) -> ApprovalPolicy:
    """When a person is asked: as the identity says for this tool, else as the tool does; a destructive one always."""
    if spec.destructive:
        return "call"
    asked: ApprovalPolicy = identity.approvals.get(spec.name, spec.approval)
    return asked


def rule(spec: ToolSpec, digest: str, context: ToolContext) -> Ruling:
    """Ask the rows about one call; permissions of the approver are read now, too.

    Args:
        digest: of the call's canonical arguments.
    """
    policy = policy_of(spec, context.identity)
    if policy == "never" and spec.effect == "read":
        return FREE
    asked = Approval.objects.of_call(context).filter(question=Question.RUN).select_related("decided_by").first()
    if asked is not None:
        return _answer(asked, spec, context)  # it holds even where the policy has been loosened since
    if policy == "never":
        return FREE
    if Approval.objects.refused(context.owner_kind, context.owner_id, spec.name).exists():
        return Ruling(refusal=f"a person refused {spec.name!r}; it stays refused for the rest of this {_run(context)}")
    if policy in ("turn", "conversation"):
        covering = Approval.objects.standing(context, tool_name=spec.name, digest=digest).select_related("decided_by")
        for approval in covering:
            if not _lost(approval.decided_by, spec, context):
                return Ruling(approval=approval, standing=True)
    return Ruling(waits=True)


def _answer(asked: Approval, spec: ToolSpec, context: ToolContext) -> Ruling:
    if asked.status == ApprovalStatus.PENDING:
        return Ruling(waits=True)
    if asked.status == ApprovalStatus.APPROVED:
        lost = _lost(asked.decided_by, spec, context)
        return Ruling(refusal=lost) if lost else Ruling(approval=asked)
    reasons = {
        ApprovalStatus.REJECTED: "a person rejected this call" + (f": {asked.note}" if asked.note else ""),
        ApprovalStatus.EXPIRED: "nobody decided about this call in time; it counts as rejected",
        ApprovalStatus.WITHDRAWN: "this call was withdrawn with its run",
    }
    return Ruling(refusal=reasons.get(ApprovalStatus(asked.status), "this call was carried out already"))


def _lost(approver: User | None, spec: ToolSpec, context: ToolContext) -> str:
    """Why the approver's word does not hold any more; empty when it does."""
    if approver is None or not may(approver, DECIDE, workspace=context.workspace):
        return "whoever approved this call may not decide about calls any more"
    if spec.permission is not None and not may(approver, spec.permission, workspace=context.workspace):
        return f"whoever approved this call does not hold the permission {spec.permission} any more"
    return ""


def ask(
    unit: UnitOfWork,
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    digest: str,
    context: ToolContext,
    *,
    question: Question = Question.RUN,
) -> Approval:
    """Write the approval a call waits for, and its event; a call that was asked about is not asked about again."""
    asked = Approval.objects.of_call(context).filter(question=question).first()
    if asked is not None:
        return asked
    approval = Approval.objects.create(
        workspace=context.workspace,
        requested_by=context.user,
        correlation_id=context.correlation_id,
        owner_kind=context.owner_kind,
        owner_id=context.owner_id,
        conversation_id=context.conversation_id,
        plan_id=context.plan_id,
        round=context.round,
        position=context.position,
        identity=context.identity.name,
        mode=context.mode,
        tool_name=spec.name,
        effect=spec.effect,
        destructive=spec.destructive,
        question=question,
        policy=policy_of(spec, context.identity),
        summary=summary_of(spec, arguments),
        arguments=arguments,
        arguments_digest=digest,
        expires_at=database_now() + timedelta(days=tool_settings().approval_days),
    )
    unit.record(EventName.APPROVAL_REQUESTED, **card(approval, label=spec.label))
    return approval


def summary_of(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """A sentence about one call for its approver, made by the server from the stored arguments."""
    text = f"{spec.label}: " + ", ".join(f"{name} = {canonical(value)}" for name, value in arguments.items())
    if spec.summary is not None:
        try:
            made = spec.summary.format(**arguments) if isinstance(spec.summary, str) else spec.summary(**arguments)
            text = str(made)
        except Exception as exc:  # noqa: BLE001  # a summary that fails must not keep the call from being asked about
            text = f"{text} (its own summary failed: {type(exc).__name__})"
    return shortened(text.rstrip(": ") or spec.label)


def card(approval: Approval, *, label: str = "") -> dict[str, Any]:
    """What people are shown, and clients receive, about an approval: the stored arguments, all of them."""
    return {
        "approval_id": approval.pk,
        "run": f"{approval.owner_kind}:{approval.owner_id}",
        "plan_id": approval.plan_id,
        "round": approval.round,
        "position": approval.position,
        "tool": approval.tool_name,
        "label": label or approval.tool_name.replace("_", " ").capitalize(),
        "question": approval.question,
        "summary": approval.summary,
        "arguments": approval.arguments,
        "edited_arguments": approval.edited_arguments,
        "destructive": approval.destructive,
        "status": approval.status,
        "requested_by": approval.requested_by_id,
        "expires_at": approval.expires_at.isoformat(),
        "decided_by": approval.decided_by_id,
        "note": approval.note,
    }


def _run(context: ToolContext) -> str:
    return {"turn": "turn", "step": "step", "call": "run"}[context.owner_kind]
