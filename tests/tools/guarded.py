"""Guarded tools, and what asks about them, decides and goes on: for the tests of approvals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Permission
from django.utils import timezone

from prompt.types import AgentIdentity
from tools import services
from tools.doors import CallResult, run_call
from tools.executor import ToolExecutor, _OwnUnit
from tools.models import Approval, ToolCallRun
from tools.registry import Registry, tool
from tools.types import ToolContext
from workspaces.models import Membership, User, Workspace

ADD, DELETE = "capstan_workspaces.add_workspace", "capstan_workspaces.delete_workspace"

tools = Registry()
told: list[tuple[str, str]] = []


@tool(effect="write", permission=DELETE, destructive=True, summary="Delete the workspace {slug}", registry=tools)
def remove(slug: str) -> str:
    """Delete a workspace."""
    Workspace.objects.get(slug=slug).delete()
    return f"{slug} is gone"


@tool(effect="external", permission=ADD, approval="call", registry=tools)
def tell(text: str, context: ToolContext) -> str:
    """Tell the world."""
    told.append((text, context.idempotency_key))
    return text


@tool(effect="write", permission=ADD, approval="turn", registry=tools)
def make(slug: str) -> str:
    """Make a workspace."""
    return Workspace.objects.create(slug=slug, name=slug).slug


IDENTITY = AgentIdentity(name="tester", system_tone="", allowed_tools=frozenset({"remove", "tell", "make"}))

Ask = Callable[..., CallResult]


def decider(name: str, workspace: Workspace, *permissions: str) -> User:
    wanted = permissions or ("decide_approval", "add_workspace", "delete_workspace")
    user = User.objects.create_user(name, password=None)
    Membership.objects.create(user=user, workspace=workspace)
    user.user_permissions.add(*Permission.objects.filter(codename__in=wanted))
    return User.objects.get(pk=user.pk)


def executor_of(call: ToolCallRun | None = None) -> ToolExecutor:
    return ToolExecutor(tools, IDENTITY, mode="workflow")


def work(call: ToolCallRun) -> CallResult | None:
    """What the worker does once it is told."""
    return run_call(call.pk, executor_of=executor_of, clock=timezone.now)


def decide(user: User, decision: Any = "approve", **more: Any) -> Approval:
    """Decide about the oldest approval that waits."""
    waiting = more.pop("approval", None) or Approval.objects.pending().earliest("pk")
    return services.decide(
        approval_id=waiting.pk, user=user, decision=decision, now=timezone.now(), tools=tools, **more
    )


def status_of(call: ToolCallRun) -> tuple[str, list[str]]:
    call.refresh_from_db()
    return call.status, list(Approval.objects.order_by("pk").values_list("status", flat=True))


def context(workspace: Workspace, user: User, identity: AgentIdentity = IDENTITY) -> Callable[..., ToolContext]:
    """Contexts of calls of one turn."""

    def place(position: int, **values: Any) -> ToolContext:
        given: dict[str, Any] = {"owner_kind": "turn", "owner_id": 7, "round": 1, "conversation_id": None} | values
        return ToolContext(
            user=user,
            workspace=workspace,
            identity=identity,
            mode="workflow",
            position=position,
            correlation_id="c-1",
            idempotency_key="k",
            now=timezone.now(),
            **given,
        )

    return place


def wait(executor: ToolExecutor, checked: Any, place: ToolContext) -> Approval:
    return executor.park(_OwnUnit(), checked, place)


def decide_row(approval: Approval, by: User) -> None:
    """Approve where no run has to go on."""
    Approval.objects.decide(
        approval.pk, to="approved", by=by, note="", now=timezone.now(), decided_digest=approval.arguments_digest
    )


def fields_of(identity: AgentIdentity) -> dict[str, Any]:
    return {name: getattr(identity, name) for name in AgentIdentity.__dataclass_fields__}
