"""Who may what where: membership first, and what was taken away counts at once."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission

from tests.support.runs import make_user, make_workspace
from workspaces.models import Membership, User, Workspace
from workspaces.permissions import may

WRITE = "capstan_catalog.change_element"

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> User:
    return make_user()


@pytest.fixture
def workspace(user: User) -> Workspace:
    return make_workspace(user)


def permission() -> Permission:
    return Permission.objects.get(codename="change_element", content_type__app_label="capstan_catalog")


def test_a_member_makes_plans_and_writes_nothing_else(user: User, workspace: Workspace):
    assert may(user, "capstan_plan.add_executionplan", workspace=workspace)
    assert not may(user, WRITE, workspace=workspace)


def test_a_group_of_the_membership_grants_in_its_workspace_alone(user: User, workspace: Workspace):
    other = make_workspace(user)
    group = Group.objects.create(name="editors")
    group.permissions.add(permission())
    Membership.objects.get(user=user, workspace=workspace).groups.add(group)
    assert may(user, WRITE, workspace=workspace)
    assert not may(user, WRITE, workspace=other)


@pytest.mark.parametrize("through", ["own", "group"])
def test_a_permission_of_the_whole_site_needs_membership(user: User, workspace: Workspace, through: str):
    if through == "own":
        user.user_permissions.add(permission())
    else:
        group = Group.objects.create(name="editors")
        group.permissions.add(permission())
        user.groups.add(group)
    assert may(user, WRITE, workspace=workspace)
    assert not may(user, WRITE, workspace=make_workspace())


def test_a_superuser_is_a_member_or_may_nothing(workspace: Workspace):
    root = make_user(is_superuser=True)
    assert not may(root, WRITE, workspace=workspace)
    Membership.objects.create(user=root, workspace=workspace)
    assert may(root, WRITE, workspace=workspace)


def test_what_was_taken_away_counts_at_once_for_an_object_read_before(user: User, workspace: Workspace):
    user.user_permissions.add(permission())
    held = User.objects.get(pk=user.pk)
    assert may(held, WRITE, workspace=workspace)
    user.user_permissions.clear()
    assert not may(held, WRITE, workspace=workspace)
    user.user_permissions.add(permission())
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert not may(held, WRITE, workspace=workspace)
