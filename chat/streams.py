"""Who may read a stream: its owner, who decides about its calls, and who may see all of its workspace (design § 8)."""

from __future__ import annotations

from importlib import import_module
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from rest_framework.authtoken.models import Token

from chat.models import Conversation
from plan.models import ExecutionPlan, PlanStep
from streaming.errors import NoSuchStream, NotSignedIn
from streaming.types import Grant, StreamRequest
from tools.queries import may_decide_about
from workspaces.models import Membership, User
from workspaces.permissions import VIEW_ALL, may


def stream_gate(request: StreamRequest) -> Grant:
    """Answer the SSE handler, from the database now.

    Raises:
        NotSignedIn: no valid session or token, or the user was deactivated.
        NoSuchStream: no such conversation or plan, or not theirs to read.
    """
    user = _user_of(request)
    if request.kind == "conversation":
        return _conversation(user, UUID(request.key))
    return _plan(user, int(request.key))


def _user_of(request: StreamRequest) -> User:
    user: User | AnonymousUser | None = None
    if request.token:
        token = Token.objects.select_related("user").filter(key=request.token).first()
        user = token.user if token else None
    elif request.session_key:
        asked = HttpRequest()
        asked.session = import_module(settings.SESSION_ENGINE).SessionStore(request.session_key)
        user = get_user(asked)
    if not isinstance(user, User) or not user.is_active:
        raise NotSignedIn
    return user


def _conversation(user: User, key: UUID) -> Grant:
    conversation = Conversation.objects.filter(pk=key).first()
    if conversation is None or not (
        sees(user, owner_id=conversation.user_id, workspace_id=conversation.workspace_id)
        or may_decide_about(user, conversation.workspace_id, owner_kind="turn", conversation_id=key)
    ):
        raise NoSuchStream
    return Grant(stream_id=conversation.stream_id)


def _plan(user: User, key: int) -> Grant:
    plan = ExecutionPlan.objects.filter(pk=key).first()
    if plan is None or not (
        sees(user, owner_id=plan.owner_id, workspace_id=plan.workspace_id)
        or may_decide_about(user, plan.workspace_id, plan_id=key)
    ):
        raise NoSuchStream
    steps = PlanStep.objects.filter(plan=plan).values_list("pk", flat=True)
    return Grant(
        stream_id=plan.stream_id,
        plan_id=plan.pk,
        runs=frozenset(f"step:{pk}" for pk in steps),
        ended=plan.ended,
    )


def sees(user: User, *, owner_id: int, workspace_id: int) -> bool:
    """Whether `user` may read a run: their own while they are a member, others' with `view_all`."""
    if owner_id == user.pk:
        return user.is_active and Membership.objects.filter(user=user, workspace=workspace_id).exists()
    return may(user, VIEW_ALL, workspace=workspace_id)
