"""Who calls, for the tests of the policy layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from prompt.types import AgentIdentity
from tests.tools import guarded
from tools.doors import CallResult, call_tool
from tools.executor import ToolExecutor
from tools.registry import Registry
from tools.types import ToolContext, idempotency_key
from workspaces.models import Membership, User, Workspace

WRITES = frozenset({"make", "notify", "silent", "remove", "tell"})


@pytest.fixture
def workspace(transactional_db: None) -> Workspace:
    return Workspace.objects.create(slug="north", name="North")


@pytest.fixture
def member(workspace: Workspace) -> User:
    """A member who may add and delete workspaces: the permissions that the tests' tools ask for."""
    user = User.objects.create_user("mia", password=None)
    Membership.objects.create(user=user, workspace=workspace)
    user.user_permissions.add(*Permission.objects.filter(codename__in=("add_workspace", "delete_workspace")))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def chief(workspace: Workspace) -> User:
    """Somebody who may decide about every guarded call."""
    return guarded.decider("chief", workspace)


@pytest.fixture
def ask(workspace: Workspace, member: User) -> guarded.Ask:
    """The member calls a guarded tool at a door."""
    guarded.told.clear()

    def make_call(name: str = "remove", **arguments: Any) -> CallResult:
        return call_tool(
            executor=guarded.executor_of(),
            user=member,
            workspace=workspace,
            name=name,
            arguments=arguments,
            door="rest",
            correlation_id="c-9",
            clock=timezone.now,
        )

    return make_call


MakeContext = Callable[..., ToolContext]


@pytest.fixture
def context_of(workspace: Workspace, member: User) -> MakeContext:
    """Makes contexts; each call of one owner gets the next position."""
    position = 0

    def make(**values: Any) -> ToolContext:
        nonlocal position
        position += 1
        kind, owner = values.get("owner_kind", "call"), values.get("owner_id", 7)
        given: dict[str, Any] = {
            "user": member,
            "workspace": workspace,
            "identity": AgentIdentity(name="tester", system_tone="", allowed_tools=WRITES),
            "mode": "workflow",
            "owner_kind": kind,
            "owner_id": owner,
            "round": 1,
            "position": position,
            "correlation_id": "c-1",
            "now": timezone.now(),
        } | values
        given.setdefault("idempotency_key", idempotency_key(kind, owner, given["round"], given["position"]))
        return ToolContext(**given)

    return make


def executor_of(registry: Registry, *, mode: str = "workflow", **identity: Any) -> ToolExecutor:
    """An executor that is allowed every tool of `registry`, unless the identity says otherwise."""
    identity.setdefault("allowed_tools", registry.names())
    who = AgentIdentity(name="tester", system_tone="", **identity)
    return ToolExecutor(registry, who, mode=mode)  # type: ignore[arg-type]


def call_of(name: str, **arguments: Any) -> Any:
    """A call as a model makes it."""
    return {"id": "c1", "name": name, "arguments": arguments}
