"""Writes: decisions of people about tool calls (CAP-033)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from events.ports import EventSink
from events.types import EventName
from tools.approvals import DECIDE, card, summary_of
from tools.envelopes import shortened
from tools.errors import ApprovalConflict, ApprovalForbidden, InvalidArguments
from tools.models import Approval, ApprovalStatus, Question, StoredResult, ToolExecution
from tools.ports import run_owner
from tools.queries import approval_for, is_waiting
from tools.registry import Registry
from tools.settings import tool_settings
from tools.toolset import tools_of
from tools.types import ToolSpec
from tools.values import clean_text, digest
from workspaces.errors import NotVisible
from workspaces.models import User
from workspaces.permissions import may

logger = logging.getLogger(__name__)

Decision = Literal["approve", "reject"]

NOTE_CHARACTERS = 1000


def decide(
    *,
    approval_id: int,
    user: User,
    decision: Decision,
    now: datetime,
    note: str = "",
    arguments: Mapping[str, Any] | None = None,
    any_arguments: bool = False,
    tools: Registry | None = None,
) -> Approval:
    """Approve or reject a call that waits; the run it holds up goes on when it was the last. One commit.

    Args:
        approval_id: which.
        user: who decides.
        decision: for a call that a crash cut off: `approve` says that it took effect, `reject` that it did not.
        now: aware UTC time.
        note: for the model and the record, up to 1,000 characters.
        arguments: run with these in place of the stored ones; validated again, both versions are kept.
        any_arguments: where the policy lets an approval stand for later calls: whatever their arguments are.
        tools: what calls may name; None: the workspace's tools.

    Raises:
        NotVisible: no such approval for this user.
        ApprovalForbidden: the user may see it and may not decide it; the detail `reason` says why.
        InvalidArguments: the edited arguments do not fit the tool.
        ApprovalConflict: it was decided already, or its run has ended.

    Source: CAP-033.
    """
    approval = approval_for(user, approval_id)
    spec = (tools or tools_of(approval.workspace)).get(approval.tool_name)
    _check_may_decide(approval, user, spec, approves=decision == "approve")
    columns: dict[str, Any] = {}
    if decision == "approve" and approval.question == Question.RUN:
        columns = _approved(approval, spec, arguments, any_arguments=any_arguments)
    elif arguments is not None:
        raise InvalidArguments("arguments are edited only where a call is approved to run")
    to = ApprovalStatus.APPROVED if decision == "approve" else ApprovalStatus.REJECTED
    note = shortened(clean_text(note), NOTE_CHARACTERS)
    if not _close(approval, to=to, by=user, note=note, now=now, columns=columns):
        approval.refresh_from_db()
        raise ApprovalConflict(approval=approval.pk, status=approval.status)
    approval.refresh_from_db()
    return approval


def expire_approvals(now: datetime, *, limit: int = 200) -> list[int]:
    """Reject what nobody decided in time; the keys of those that expired. For the sweep; two at once are harmless.

    What a run waited for that is gone is withdrawn.

    Source: CAP-033.
    """
    expired = []
    for approval in Approval.objects.pending().filter(expires_at__lte=now).order_by("expires_at")[:limit]:
        try:
            if _close(approval, to=ApprovalStatus.EXPIRED, by=None, note="", now=now, columns={}):
                expired.append(approval.pk)
        except Exception:
            logger.exception("approval %s could not expire", approval.pk)
    return expired


def withdraw_approvals(*, owner_kind: str, owner_ids: Sequence[int], now: datetime, events: EventSink) -> int:
    """Take back what a run still waits for because it ends; inside the transaction that ends it. How many.

    Args:
        owner_ids: the turn, or all steps of the plan.
        events: of that transaction; readers are told of each one that nobody has to decide any more.
    """
    withdrawn = Approval.objects.withdraw(owner_kind, owner_ids, now=now)
    for approval in withdrawn:
        events.record(EventName.APPROVAL_DECIDED, **card(approval))
    return len(withdrawn)


def forget_conversation(*, conversation_id: UUID) -> None:
    """Keep no content of a conversation that is deleted: its ledger rows stay as counts, its approvals go.

    Its plans are deleted with it, so what they did is treated alike.
    """
    rows = ToolExecution.objects.filter(conversation_id=conversation_id)
    StoredResult.objects.filter(execution__in=rows).delete()
    Approval.objects.filter(conversation_id=conversation_id).delete()
    rows.update(arguments={}, result=None, error="", plan_id=None, conversation_id=None)


def settle_unknown(
    *, execution_id: int, user: User, happened: bool, now: datetime, note: str = "", workspace_ids: Sequence[int]
) -> bool:
    """Say what became of a call whose outcome is unknown; whether it still was. A run that waits for it goes on.

    Args:
        now: aware UTC time.
        workspace_ids: where the user may decide.
    """
    row = ToolExecution.objects.filter(pk=execution_id, workspace__in=workspace_ids).first()
    if row is None:
        return False
    asked = Approval.objects.pending().of_call(row).filter(question=Question.HAPPENED).first()
    if asked is None:
        return _settle(row.pk, by=user, happened=happened, note=note)
    to = ApprovalStatus.APPROVED if happened else ApprovalStatus.REJECTED
    return _close(asked, to=to, by=user, note=note, now=now, columns={})


def _check_may_decide(approval: Approval, user: User, spec: ToolSpec | None, *, approves: bool) -> None:
    def forbid(reason: str) -> ApprovalForbidden:
        return ApprovalForbidden(approval=approval.pk, reason=reason)

    if not may(user, DECIDE, workspace=approval.workspace):
        raise forbid(f"needs the permission {DECIDE}")
    if not approves:
        return
    if tool_settings().four_eyes and user.pk == approval.requested_by_id:
        raise forbid("the requester may not approve; somebody else has to")
    if spec is None:
        raise forbid(f"there is no tool {approval.tool_name!r} any more; it can only be rejected")
    if spec.permission is not None and not may(user, spec.permission, workspace=approval.workspace):
        raise forbid(f"needs the tool's own permission {spec.permission}")


def _approved(
    approval: Approval, spec: ToolSpec | None, arguments: Mapping[str, Any] | None, *, any_arguments: bool
) -> dict[str, Any]:
    columns: dict[str, Any] = {"decided_digest": approval.arguments_digest}
    if any_arguments:
        if approval.destructive:
            raise ApprovalForbidden(approval=approval.pk, reason="a destructive tool is approved one call at a time")
        columns["any_arguments"] = True
    if arguments is None or spec is None:
        return columns
    edited = spec.signature.parse(arguments).stored
    if digest(edited) == approval.arguments_digest:
        return columns
    return columns | {
        "edited_arguments": edited,
        "decided_digest": digest(edited),
        "summary": summary_of(spec, edited),
    }


def _close(
    approval: Approval, *, to: str, by: User | None, note: str, now: datetime, columns: Mapping[str, Any]
) -> bool:
    """Take the decision under the locks of stream and run, and let the run go on when nothing else holds it up.

    Of a run that is gone nothing goes on: what it waited for is withdrawn.
    """
    owner = run_owner(approval.owner_kind)
    with ExitStack() as locks:
        try:
            change = locks.enter_context(owner.locked(approval.owner_id))
        except NotVisible:
            Approval.objects.withdraw(approval.owner_kind, [approval.owner_id], now=now)
            return False
        if not Approval.objects.decide(approval.pk, to=to, by=by, note=note, now=now, **columns):
            return False
        if approval.question == Question.HAPPENED and by is not None:
            row = ToolExecution.objects.of_call(approval).get()
            happened = to == ApprovalStatus.APPROVED
            _settle(row.pk, by=by, happened=happened, note=note)
            for asked in Approval.objects.of_call(approval).filter(question=Question.RUN):
                Approval.objects.carry_out(asked.pk, succeeded=happened)
        approval.refresh_from_db()
        change.record(EventName.APPROVAL_DECIDED, **card(approval))
        if not is_waiting(approval.owner_kind, approval.owner_id):
            owner.resume(change, approval.owner_id)
    return True


def _settle(pk: int, *, by: User, happened: bool, note: str) -> bool:
    said = f"{by.get_username()} says that this call {'took' if happened else 'did not take'} effect"
    text = f"{said}: {note}" if note else said
    return ToolExecution.objects.settle(
        pk, happened=happened, result={"confirmed": text} if happened else None, error="" if happened else text[:500]
    )
