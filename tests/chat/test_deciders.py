"""Who decides about a call sees the run that it belongs to, and no other (design § 8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from chat.streams import stream_gate
from factory.tiers import llm_settings
from llm.testing import call
from streaming.errors import NoSuchStream
from streaming.types import StreamRequest
from tests.support.plans import agents_on, hold_plan, llm_step, run_plan
from tests.support.runs import make_user
from tools.registry import Registry, tool
from workspaces.models import Membership, User, Workspace

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()


@tool(effect="write", permission="capstan_workspaces.add_workspace", approval="call", registry=registry)
def guarded(slug: str) -> str:
    """Write once a person agrees."""
    return slug


@pytest.fixture(autouse=True)
def stand_in(settings: Any) -> Iterator[None]:
    """Pages ask which model is connected; the stand-in is one for DEBUG alone."""
    settings.DEBUG = True
    llm_settings.cache_clear()
    yield
    llm_settings.cache_clear()


def decider(workspace: Workspace) -> User:
    user = make_user()
    Membership.objects.create(user=user, workspace=workspace)
    user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    return user


def colleague(workspace: Workspace) -> User:
    user = make_user()
    Membership.objects.create(user=user, workspace=workspace)
    return user


def reads(user: User, path: str) -> Any:
    client = Client()
    client.force_login(user)
    return client.get(path)


def streams(user: User, kind: str, key: object) -> bool:
    client = Client()
    client.force_login(user)
    try:
        stream_gate(StreamRequest(kind=kind, key=str(key), session_key=client.session.session_key, token=""))
    except NoSuchStream:
        return False
    return True


def test_a_turn_is_shown_to_who_decides_its_call(chat):
    it = chat(call("guarded", slug="x"), tools=registry)
    turn = it.say("go")
    assert turn.status == "waiting_approval"
    other = chat("answered")
    quiet = other.say("hi")
    key: UUID = it.conversation.pk
    paths = [f"/api/conversations/{key}/messages/", f"/api/turns/{turn.pk}/", f"/c/{key}/"]
    who, plain, stranger = decider(it.workspace), colleague(it.workspace), decider(other.workspace)
    assert [reads(who, path).status_code for path in paths] == [200, 200, 200]
    assert [reads(plain, path).status_code for path in paths] == [404, 404, 404]
    assert [reads(stranger, path).status_code for path in paths] == [404, 404, 404]
    assert [streams(user, "conversation", key) for user in (who, plain, stranger)] == [True, False, False]
    assert reads(stranger, f"/api/turns/{quiet.pk}/").status_code == 404  # nobody was asked about that one
    traced = {user: len(reads(user, "/api/interactions/").json()["results"]) for user in (who, plain, stranger)}
    assert traced == {who: 1, plain: 0, stranger: 0}
    assert reads(who, f"/api/conversations/{key}/").status_code == 200
    sent = Client()
    sent.force_login(who)
    assert sent.post(f"/api/turns/{turn.pk}/cancel/").status_code == 404  # to see is not to steer


def test_a_plan_is_shown_to_who_decides_its_call(scripted_llm):
    plan = hold_plan(llm_step("ask"))
    plan.owner.is_superuser = True
    plan.owner.save()
    run_plan(plan, agents_on(scripted_llm(call("guarded", slug="x")), guarded))
    assert plan.status == "waiting_approval"
    quiet = hold_plan(llm_step("a"), owner=plan.owner, workspace=plan.workspace)
    who, plain = decider(plan.workspace), colleague(plan.workspace)
    paths = [f"/api/plans/{plan.pk}/", f"/plans/{plan.pk}/", f"/api/plans/{plan.pk}/graph/"]
    assert [reads(who, path).status_code for path in paths] == [200, 200, 200]
    assert [reads(plain, path).status_code for path in paths] == [404, 404, 404]
    assert reads(who, f"/api/plans/{quiet.pk}/").status_code == 404
    assert [row["id"] for row in reads(who, "/api/plans/").json()["results"]] == [plan.pk]
    assert (streams(who, "plan", plan.pk), streams(plain, "plan", plan.pk)) == (True, False)
    assert len(reads(who, f"/api/interactions/?plan={plan.pk}").json()["results"]) == 1
