"""Deciding in the admin, one by one and in bulk, and on the command line (CAP-033)."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from prompt.types import AgentIdentity
from tools.doors import call_tool
from tools.executor import ToolExecutor
from tools.models import Approval, ToolExecution
from tools.registry import registry
from workspaces.models import Membership, User, Workspace

IDENTITY = AgentIdentity(
    name="tester", system_tone="", allowed_tools=frozenset({"annotate_element"}), approvals={"annotate_element": "call"}
)


def person(name: str, workspace: Workspace, *permissions: str) -> User:
    user = User.objects.create_user(name, password=None, is_staff=True)
    Membership.objects.create(user=user, workspace=workspace)
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def requester(workspace: Workspace) -> User:
    return person("rea", workspace, "change_element")


@pytest.fixture
def chief(workspace: Workspace) -> User:
    return person("chief", workspace, "change_element", "decide_approval")


@pytest.fixture
def waiting(workspace: Workspace, requester: User) -> list[Approval]:
    """Three calls that wait."""
    return [ask(workspace, requester, note) for note in ("<b>one</b>", "two", "three")]


def ask(workspace: Workspace, user: User, note: str) -> Approval:
    done = call_tool(
        executor=ToolExecutor(registry(), IDENTITY, mode="workflow"),
        user=user,
        workspace=workspace,
        name="annotate_element",
        arguments={"key": "module:a", "note": note},
        door="rest",
        correlation_id="c-1",
        clock=timezone.now,
    )
    assert done.approval is not None
    return done.approval


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def statuses() -> list[str]:
    return list(Approval.objects.order_by("pk").values_list("status", flat=True))


def decide_url(approval: Approval) -> str:
    return reverse("admin:capstan_tools_approval_decide", args=[approval.pk])


def test_the_admin_shows_the_stored_arguments_and_takes_edited_ones(waiting: list[Approval], chief: User) -> None:
    client = signed_in(chief)
    page = client.get(reverse("admin:capstan_tools_approval_change", args=[waiting[0].pk])).content.decode()
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<b>one</b>" not in page
    edited = json.dumps({"key": "module:a", "note": "mild"})
    client.post(
        decide_url(waiting[0]), {"decision": "approve", "arguments": edited, "note": "ok", "status": "executed"}
    )
    approval = Approval.objects.get(pk=waiting[0].pk)
    assert (approval.status, approval.decided_by, approval.note) == ("approved", chief, "ok")
    assert approval.edited_arguments == {"key": "module:a", "note": "mild"}
    page = client.get(reverse("admin:capstan_tools_approval_change", args=[waiting[0].pk])).content.decode()
    assert "May this call run?" not in page


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"key": 1}'])
def test_edited_arguments_that_do_not_fit_decide_nothing(arguments: str, waiting: list[Approval], chief: User) -> None:
    response = signed_in(chief).post(
        decide_url(waiting[0]), {"decision": "approve", "arguments": arguments}, follow=True
    )
    assert "Not decided" in response.content.decode()
    assert statuses() == ["pending"] * 3


def test_many_are_decided_at_once_and_conflicts_are_named(waiting: list[Approval], chief: User) -> None:
    client, chosen = signed_in(chief), [approval.pk for approval in waiting]
    signed_in(chief).post(decide_url(waiting[1]), {"decision": "reject"})
    response = client.post(
        reverse("admin:capstan_tools_approval_changelist"),
        {"action": "approve", "_selected_action": chosen},
        follow=True,
    )
    text = response.content.decode()
    assert f"{waiting[1].pk} was not decided" in text
    assert "2 decided." in text
    assert statuses() == ["approved", "rejected", "approved"]


def test_others_get_404_or_403_and_decide_nothing(
    waiting: list[Approval], requester: User, workspace: Workspace
) -> None:
    east = Workspace.objects.create(slug="east", name="East")
    stranger = person("stranger", east, "change_element", "decide_approval", "view_approval")
    assert signed_in(stranger).post(decide_url(waiting[0]), {"decision": "approve"}).status_code == 404
    assert signed_in(requester).post(decide_url(waiting[0]), {"decision": "approve"}).status_code == 403
    assert signed_in(requester).get(reverse("admin:capstan_tools_approval_changelist")).status_code == 403
    assert Client().post(decide_url(waiting[0]), {"decision": "approve"}).status_code == 302
    listed = signed_in(stranger).get(reverse("admin:capstan_tools_approval_changelist")).content.decode()
    assert "0 approvals" in listed
    assert Client(enforce_csrf_checks=True).post(decide_url(waiting[0]), {}).status_code in (302, 403)
    assert statuses() == ["pending"] * 3


def test_the_ledger_in_the_admin_settles_unknown_outcomes(chief: User, waiting: list[Approval]) -> None:
    approval = waiting[0]
    row = ToolExecution.objects.create(
        workspace=approval.workspace,
        user=approval.requested_by,
        correlation_id="c",
        owner_kind="call",
        owner_id=approval.owner_id,
        round=1,
        position=1,
        tool_name="tell",
        mode="workflow",
        arguments_digest="",
        idempotency_key="",
        status="unknown",
    )
    url = reverse("admin:capstan_tools_toolexecution_changelist")
    signed_in(chief).post(url, {"action": "took_effect", "_selected_action": [row.pk]})
    row.refresh_from_db()
    assert row.status == "succeeded"


def command(*arguments: str, user: str = "chief") -> str:
    out = io.StringIO()
    call_command("decide", *arguments, f"--user={user}", stdout=out)
    return out.getvalue()


def test_cap_033_manage_py_decide(waiting: list[Approval], chief: User, requester: User) -> None:
    first, second, third = (str(approval.pk) for approval in waiting)
    assert len(command().splitlines()) == 3
    assert command(first, "approve", "--note=fine") == f"{first} approved\n"
    edited = '--arguments={"key": "module:b", "note": "n"}'
    assert command(second, "approve", edited) == f"{second} approved\n"
    assert command(third, "reject") == f"{third} rejected\n"
    assert statuses() == ["approved", "approved", "rejected"]
    refused: list[tuple[Any, ...]] = [
        (first, "reject"),
        (first,),
        ("999999", "approve"),
        (third, "approve", "--arguments=x"),
    ]
    for arguments in refused:
        with pytest.raises(CommandError):
            command(*arguments)
    for user in ("rea", "nobody"):
        with pytest.raises(CommandError):
            command(third, "approve", user=user)
