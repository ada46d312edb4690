"""Which calls an approval covers, and which policies ask for one (CAP-033)."""

from __future__ import annotations

import pytest
from django.utils import timezone

from prompt.types import AgentIdentity
from tests.tools.conftest import call_of
from tests.tools.guarded import (
    IDENTITY,
    Ask,
    context,
    decide,
    decide_row,
    executor_of,
    fields_of,
    told,
    tools,
    wait,
)
from tools.doors import run_call
from tools.errors import ApprovalForbidden
from tools.executor import ToolExecutor
from tools.models import Approval
from workspaces.models import Membership, User, Workspace


def test_an_approval_stands_for_the_same_call_only(workspace: Workspace, member: User, chief: User) -> None:
    executor, place = executor_of(), context(workspace, member)
    checked = executor.check(call_of("make", slug="a"), place(1))
    assert checked.kind == "parked"
    asked = wait(executor, checked, place(1))
    decide_row(asked, chief)
    assert executor.check(call_of("make", slug="a"), place(1)).kind == "write"
    assert executor.check(call_of("make", slug="a"), place(2)).kind == "write"
    assert executor.check(call_of("make", slug="b"), place(3)).kind == "parked"
    assert executor.check(call_of("make", slug="a"), place(2, owner_id=8)).kind == "parked"
    Approval.objects.update(any_arguments=True)
    assert executor.check(call_of("make", slug="b"), place(3)).kind == "write"
    Membership.objects.filter(user=chief).delete()
    assert executor.check(call_of("make", slug="a"), place(2)).kind == "parked"


def test_an_approver_widens_an_approval_but_never_a_destructive_one(ask: Ask, chief: User) -> None:
    ask("make", slug="a")
    ask(slug="north")
    assert decide(chief, any_arguments=True).any_arguments is True
    with pytest.raises(ApprovalForbidden, match="one call at a time"):
        decide(chief, any_arguments=True)
    assert Approval.objects.pending().count() == 1


def test_a_standing_approval_of_a_conversation_ends_with_it(workspace: Workspace, member: User, chief: User) -> None:
    from uuid import uuid4

    who = AgentIdentity(**{**fields_of(IDENTITY), "approvals": {"make": "conversation"}})
    executor, here, there = ToolExecutor(tools, who, mode="workflow"), uuid4(), uuid4()
    place = context(workspace, member, identity=who)
    asked = wait(
        executor,
        executor.check(call_of("make", slug="a"), place(1, conversation_id=here)),
        place(1, conversation_id=here),
    )
    decide_row(asked, chief)
    assert executor.check(call_of("make", slug="a"), place(1, owner_id=8, conversation_id=here)).kind == "write"
    assert executor.check(call_of("make", slug="a"), place(1, owner_id=8, conversation_id=there)).kind == "parked"
    assert executor.check(call_of("make", slug="a"), place(1, owner_id=8)).kind == "parked"


def test_a_destructive_tool_is_asked_about_whatever_the_identity_says(workspace: Workspace, member: User) -> None:
    who = AgentIdentity(**{**fields_of(IDENTITY), "approvals": {"remove": "never", "tell": "never"}})
    executor, place = ToolExecutor(tools, who, mode="workflow"), context(workspace, member, identity=who)
    assert executor.check(call_of("remove", slug="north"), place(1)).kind == "parked"
    assert executor.check(call_of("tell", text="x"), place(2)).kind == "external"


def test_a_decision_holds_though_the_policy_was_loosened_since(ask: Ask, chief: User) -> None:
    loose = AgentIdentity(**{**fields_of(IDENTITY), "approvals": {"tell": "never"}})
    asked = [ask("tell", text=text) for text in ("one", "two")]
    decide(chief, "reject")
    decide(chief, arguments={"text": "edited"})
    for each in asked:
        run_call(each.call.pk, executor_of=lambda _: ToolExecutor(tools, loose, mode="workflow"), clock=timezone.now)
    assert [text for text, _ in told] == ["edited"]


def test_a_rejected_tool_stays_refused_for_the_rest_of_the_turn(
    workspace: Workspace, member: User, chief: User
) -> None:
    executor, place = executor_of(), context(workspace, member)
    asked = wait(executor, executor.check(call_of("make", slug="a"), place(1)), place(1))
    Approval.objects.decide(asked.pk, to="rejected", by=chief, note="", now=timezone.now())
    again = executor.check(call_of("make", slug="b"), place(1, round=2))
    assert again.kind == "blocked"
    assert "stays refused" in str(again.envelope)
    assert "make" in executor.exposed_names()
    assert executor.check(call_of("make", slug="b"), place(1, owner_id=8)).kind == "parked"
