"""The admin: people look at everything, and decide about change sets only with the permission for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from catalog import services
from catalog.extract import canonicalize, survey
from catalog.models import ChangeSet, Element
from tests.catalog.agents import agent_of, scripted
from tests.catalog.trees import SHOP, SHOP_ELEMENTS, write_tree
from tests.support.runs import make_user, make_workspace
from workspaces.models import Membership

pytestmark = pytest.mark.django_db
CHANGE_SETS = "admin:capstan_catalog_changeset_changelist"


def admin(change_set: ChangeSet) -> Client:
    """A signed-in superuser who belongs to the change set's workspace."""
    user = make_user(is_staff=True, is_superuser=True)
    Membership.objects.create(user=user, workspace=change_set.workspace)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def change_set(tmp_path: Path) -> ChangeSet:
    now = timezone.now()
    extraction = canonicalize(survey(write_tree(tmp_path, SHOP), label="shop"), agent=agent_of(scripted()))
    _, proposed = services.propose_changes(
        workspace=make_workspace(), extraction=extraction, correlation_id="c", started_at=now, now=now
    )
    assert proposed is not None
    return proposed


def staff(change_set: ChangeSet, *codenames: str, member: bool = True) -> Client:
    """A signed-in member of the staff with these permissions."""
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    if member:
        Membership.objects.create(user=user, workspace=change_set.workspace)
    client = Client()
    client.force_login(user)
    return client


def decide(client: Client, action: str, change_set: ChangeSet) -> str:
    data = {"action": action, "_selected_action": [change_set.pk]}
    page = client.post(reverse(CHANGE_SETS), data, follow=True)
    change_set.refresh_from_db()
    return page.content.decode()


def test_a_change_set_is_applied_from_the_list(change_set: ChangeSet) -> None:
    client = staff(change_set, "view_changeset", "decide_changeset")
    assert "applied" in decide(client, "apply", change_set)
    assert (change_set.status, change_set.decided_by is not None) == ("applied", True)
    assert Element.objects.count() == SHOP_ELEMENTS
    assert "catalog.change_set_closed" in decide(client, "reject", change_set), "a second decision is refused aloud"
    assert change_set.status == "applied"


def test_a_change_set_is_rejected_from_the_list(change_set: ChangeSet) -> None:
    decide(staff(change_set, "view_changeset", "decide_changeset"), "reject", change_set)
    assert change_set.status == "rejected"
    assert not Element.objects.exists()


def test_seeing_is_not_deciding(change_set: ChangeSet) -> None:
    page = decide(staff(change_set, "view_changeset"), "apply", change_set)
    assert "needs the permission decide_changeset" in page
    assert change_set.status == "proposed"


def test_a_group_of_the_workspace_may_decide_there(change_set: ChangeSet) -> None:
    client = staff(change_set, "view_changeset")
    group = Group.objects.create(name="curators")
    group.permissions.set(Permission.objects.filter(codename="decide_changeset"))
    Membership.objects.get(workspace=change_set.workspace).groups.add(group)
    decide(client, "apply", change_set)
    assert change_set.status == "applied"


def test_another_workspaces_change_set_is_neither_shown_nor_decided(change_set: ChangeSet) -> None:
    client = staff(change_set, "view_changeset", "view_changeop", "decide_changeset", member=False)
    assert change_set.title not in client.get(reverse(CHANGE_SETS)).content.decode()
    assert client.get(reverse("admin:capstan_catalog_changeop_changelist")).context["cl"].result_count == 0
    decide(client, "apply", change_set)
    assert change_set.status == "proposed"


@pytest.mark.parametrize("codenames", [("view_changeset", "view_all"), None], ids=["view_all", "superuser"])
def test_no_permission_of_the_whole_site_shows_another_workspaces_rows(
    change_set: ChangeSet, codenames: tuple[str, ...] | None
) -> None:
    if codenames is None:
        client = Client()
        client.force_login(make_user(is_staff=True, is_superuser=True))
    else:
        client = staff(change_set, *codenames, member=False)
    listed = client.get(reverse(CHANGE_SETS))
    assert listed.context["cl"].result_count == 0
    assert change_set.repository.label not in listed.content.decode()
    page = client.get(reverse("admin:capstan_catalog_changeset_change", args=[change_set.pk]), follow=True)
    assert change_set.title not in page.content.decode()


@pytest.mark.parametrize("model", ["repository", "scan", "element", "elementnote", "changeset", "changeop"])
def test_every_list_and_page_opens_and_nothing_can_be_typed_over(change_set: ChangeSet, model: str) -> None:
    services.apply_changeset(change_set_id=change_set.pk, workspace=change_set.workspace, by=None, now=timezone.now())
    element = Element.objects.get(key="module:shop.models")
    services.annotate(element=element, text="A note.", author=None)
    client = admin(change_set)
    listed = client.get(reverse(f"admin:capstan_catalog_{model}_changelist"))
    assert listed.status_code == 200
    row = listed.context["cl"].queryset[0]
    page = client.get(reverse(f"admin:capstan_catalog_{model}_change", args=[row.pk]))
    assert page.status_code == 200
    assert b'name="_save"' not in page.content


def test_a_change_set_leads_to_its_operations_and_each_to_what_it_changes(
    change_set: ChangeSet, tmp_path: Path
) -> None:
    client = admin(change_set)
    link = f"{reverse('admin:capstan_catalog_changeop_changelist')}?change_set__id__exact={change_set.pk}"
    assert link in client.get(reverse(CHANGE_SETS)).content.decode()
    assert client.get(link).context["cl"].result_count == SHOP_ELEMENTS
    op = change_set.ops.get(key="class:shop.models.Product")
    page = client.get(reverse("admin:capstan_catalog_changeop_change", args=[op.pk])).content.decode()
    assert "A thing for sale." in page
