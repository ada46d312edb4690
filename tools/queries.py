"""Reads: approvals and ledger rows, for those who may see them (design § 8 "Users see their own runs")."""

from __future__ import annotations

from django.db.models import Max, Q, QuerySet, Sum

from observability.models import AgentInteraction
from tools.approvals import DECIDE
from tools.models import OWNER_KINDS, Approval, ToolCallRun, ToolExecution
from workspaces.errors import NotVisible
from workspaces.models import User
from workspaces.permissions import VIEW_ALL, may, workspaces_where


def approvals_for(user: User, *, status: str | None = None) -> QuerySet[Approval]:
    """The approvals a user may see: those of his own runs, and all of the workspaces where he decides.

    Args:
        status: only those in this state.
    """
    rows = Approval.objects.visible_to(user).filter(
        Q(requested_by=user) | Q(workspace__in=workspaces_where(user, DECIDE, VIEW_ALL))
    )
    return rows if status is None else rows.filter(status=status)


def approval_for(user: User, approval_id: int) -> Approval:
    """One approval.

    Raises:
        NotVisible: there is none, or it is not for this user.
    """
    found = approvals_for(user).filter(pk=approval_id).first()
    if found is None:
        raise NotVisible(approval=approval_id)
    return found


def pending_of(owner_kind: str, owner_id: int) -> list[Approval]:
    """What a turn, step or call waits for, oldest first."""
    return list(Approval.objects.of_owner(owner_kind, owner_id).pending().order_by("pk"))


def is_waiting(owner_kind: str, owner_id: int) -> bool:
    """Whether a call of this turn, step or call still waits for a person."""
    return Approval.objects.of_owner(owner_kind, owner_id).pending().exists()


def seconds_used(owner_kind: str, owner_id: int) -> float:
    """How long the model calls and tools of a turn or step have taken so far, whoever ran them; waits do not count.

    Reads of one round run side by side, so only the longest of them counts.
    """
    asked = AgentInteraction.objects.filter(owner_kind=owner_kind, owner_id=owner_id).aggregate(ms=Sum("latency_ms"))
    calls = ToolExecution.objects.filter(owner_kind=owner_kind, owner_id=owner_id)
    reads = calls.filter(effect="read").values("round").annotate(longest=Max("duration_ms"))
    others = calls.exclude(effect="read").aggregate(ms=Sum("duration_ms"))
    spent = (asked["ms"] or 0) + (others["ms"] or 0) + sum(row["longest"] for row in reads)
    return float(spent) / 1000


def executions_for(user: User) -> QuerySet[ToolExecution]:
    """The ledger rows a user may see: his own, those of runs he decides about, and all where he may view all."""
    rows = ToolExecution.objects.visible_to(user)
    return rows.filter(Q(user=user) | Q(workspace__in=workspaces_where(user, VIEW_ALL)) | decided_runs(user))


def decides_about(user: User) -> QuerySet[Approval]:
    """What people were or are asked, where `user` decides: he sees the runs of it (design § 8)."""
    return Approval.objects.filter(workspace__in=workspaces_where(user, DECIDE))


def may_decide_about(user: User, workspace_id: int, **run: object) -> bool:
    """Whether `user` decides in this workspace, and a call of this run was or is up for a decision.

    Args:
        run: columns of the approval that name the run, such as `plan_id` or `owner_kind` and `owner_id`.
    """
    return may(user, DECIDE, workspace=workspace_id) and Approval.objects.filter(workspace=workspace_id, **run).exists()


def decided_runs(user: User) -> Q:
    """For rows with an owner and a plan: those of runs that `user` decides about."""
    workspaces = workspaces_where(user, DECIDE)
    return Q(workspace__in=workspaces) & _asked_about(workspaces) if workspaces else Q(pk__in=())


def _asked_about(workspaces: list[int]) -> Q:
    asked = Approval.objects.filter(workspace__in=workspaces)
    found = Q(plan_id__in=asked.exclude(plan_id=None).values("plan_id"))
    for kind in OWNER_KINDS:
        found |= Q(owner_kind=kind, owner_id__in=asked.filter(owner_kind=kind).values("owner_id"))
    return found


def call_for(user: User, call_id: int) -> ToolCallRun:
    """One call made at a door.

    Raises:
        NotVisible: there is none, or it is not for this user.
    """
    found = (
        ToolCallRun.objects.visible_to(user)
        .filter(Q(user=user) | Q(workspace__in=workspaces_where(user, DECIDE, VIEW_ALL)), pk=call_id)
        .first()
    )
    if found is None:
        raise NotVisible(call=call_id)
    return found
