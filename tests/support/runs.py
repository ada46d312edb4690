"""Rows that tests of runs start from."""

from __future__ import annotations

import itertools

from chat.models import Conversation, Turn
from events.models import Stream
from plan.models import ExecutionPlan
from tools.runs import RunRef
from workspaces.models import User, Workspace
from workspaces.services import ensure_workspace

_numbers = itertools.count(1)


def make_user(name: str = "", **extra: object) -> User:
    """A user with a fresh name."""
    return User.objects.create_user(name or f"user{next(_numbers)}", password=None, **extra)  # type: ignore[arg-type]


def make_workspace(*members: User) -> Workspace:
    """A workspace with a fresh slug and these members."""
    slug = f"space-{next(_numbers)}"
    workspace = ensure_workspace(slug=slug, name=slug)
    for member in members:
        ensure_workspace(slug=slug, name=slug, member=member)
    return workspace


def make_plan(*, owner: User | None = None, workspace: Workspace | None = None, **columns: object) -> ExecutionPlan:
    """A pending plan without steps."""
    owner = owner or make_user()
    workspace = workspace or make_workspace(owner)
    return ExecutionPlan.objects.create(
        workspace=workspace,
        stream=Stream.objects.create(workspace=workspace),
        correlation_id="test",
        status=ExecutionPlan.READY,
        owner=owner,
        identity="planner",
        goal="a goal",
        **columns,
    )


def make_conversation(*, user: User | None = None, workspace: Workspace | None = None) -> Conversation:
    """An empty conversation."""
    user = user or make_user()
    workspace = workspace or make_workspace(user)
    return Conversation.objects.create(
        stream=Stream.objects.create(workspace=workspace), workspace=workspace, user=user, identity="planner"
    )


def make_turn(conversation: Conversation | None = None, **columns: object) -> Turn:
    """A queued turn without messages."""
    conversation = conversation or make_conversation()
    return Turn.objects.create(
        workspace=conversation.workspace,
        stream_id=conversation.pk,
        correlation_id="test",
        status=Turn.READY,
        conversation=conversation,
        user=conversation.user,
        identity="planner",
        **columns,
    )


def claim(run: ExecutionPlan | Turn, owner: str = "test") -> RunRef:
    """Claim a run that is free."""
    won = type(run).objects.claim(run.pk, owner=owner)
    assert won is not None
    return RunRef.of(won)
