"""Staff of one tenant see nothing of another in the admin (design § 8: the same at every door)."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from events.models import Event
from observability.models import AgentInteraction
from tests.support.runs import make_plan, make_turn, make_user
from workspaces.models import Membership, User

MODELS = {
    "capstan_chat_conversation": "capstan_chat.view_conversation",
    "capstan_chat_turn": "capstan_chat.view_turn",
    "capstan_chat_message": "capstan_chat.view_message",
    "capstan_plan_executionplan": "capstan_plan.view_executionplan",
    "capstan_events_event": "capstan_events.view_event",
    "capstan_observability_agentinteraction": "capstan_observability.view_agentinteraction",
}

pytestmark = pytest.mark.django_db


def grant(user: User, *names: str) -> None:
    for name in names:
        label, codename = name.split(".")
        user.user_permissions.add(Permission.objects.get(codename=codename, content_type__app_label=label))


@pytest.fixture
def other() -> User:
    """Somebody with rows of every kind."""
    turn = make_turn()
    turn.messages.create(conversation=turn.conversation, round=0, role="user", text="secret words")
    make_plan(owner=turn.user, workspace=turn.workspace)
    Event.objects.create(stream_id=turn.stream_id, seq=1, name="typing", correlation_id="c")
    AgentInteraction.objects.create(
        workspace=turn.workspace, user=turn.user, correlation_id="c", owner_kind="turn", owner_id=turn.pk,
        provider="p", model="m", latency_ms=1,
    )  # fmt: skip
    return turn.user


@pytest.fixture
def staff(other: User) -> User:
    user = make_user(is_staff=True)
    grant(user, *MODELS.values())
    return user


def rows(user: User, model: str) -> int:
    client = Client()
    client.force_login(user)
    answer = client.get(reverse(f"admin:{model}_changelist"))
    assert answer.status_code == 200
    return len(answer.context["cl"].result_list)


@pytest.mark.parametrize("model", MODELS)
def test_another_tenants_rows_are_not_there(staff: User, model: str):
    assert rows(staff, model) == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_member_sees_others_rows_with_view_all_only(staff: User, other: User, model: str):
    Membership.objects.create(user=staff, workspace=other.memberships.get().workspace)
    assert rows(staff, model) == 0
    grant(staff, "capstan_workspaces.view_all")
    assert rows(staff, model) == 1


def test_plans_of_another_tenant_cannot_be_cancelled(staff: User, other: User):
    grant(staff, "capstan_plan.cancel_executionplan", "capstan_workspaces.view_all")
    make_plan(owner=staff)  # a workspace of his own, where he may
    plan = other.plans.get()
    client = Client()
    client.force_login(staff)
    url = reverse("admin:capstan_plan_executionplan_changelist")
    client.post(url, {"action": "cancel", "_selected_action": [plan.pk]})
    plan.refresh_from_db()
    assert plan.cancel_requested_at is None
    assert plan.status == "pending"
