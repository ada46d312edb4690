"""Writes that wait for a person: who may decide, what runs then, and that nothing runs twice (CAP-033)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.utils import timezone

from chat.models import Turn
from chat.services import cancel_turn
from events.models import Event
from plan.services import Recorded
from plan.steering import cancel_plan
from tests.support.plans import agents_on, data_step, hold_plan, run_plan
from tests.support.runs import make_conversation, make_turn
from tests.tools.conftest import call_of
from tests.tools.guarded import (
    Ask,
    context,
    decide,
    decider,
    executor_of,
    remove,
    status_of,
    told,
    wait,
    work,
)
from tools import services
from tools.errors import ApprovalConflict, ApprovalForbidden, InvalidArguments
from tools.models import Approval, ToolExecution
from tools.queries import approvals_for, executions_for
from workspaces.errors import NotVisible
from workspaces.models import Membership, User, Workspace


def test_prf_sc05_01_a_destructive_call_waits_with_its_arguments_stored(ask: Ask, workspace: Workspace) -> None:
    Workspace.objects.create(slug="south", name="South")
    asked = ask(slug="south")
    assert asked.envelope is None
    assert asked.approval is not None
    assert status_of(asked.call) == ("waiting_approval", ["pending"])
    assert Workspace.objects.filter(slug="south").exists()
    assert ToolExecution.objects.count() == 0
    (event,) = Event.objects.filter(stream=asked.call.stream_id)
    assert (event.name, event.correlation_id) == ("approval_requested", "c-9")
    assert event.payload["arguments"] == {"slug": "south"}
    assert event.payload["summary"] == "Delete the workspace south"


def test_an_approved_call_runs_once_as_the_requester(ask: Ask, chief: User, member: User) -> None:
    Workspace.objects.create(slug="south", name="South")
    asked = ask(slug="south")
    decide(chief)
    assert status_of(asked.call) == ("queued", ["approved"])
    done = work(asked.call)
    assert done is not None
    assert done.envelope == {"success": True, "result": "south is gone", "error": None}
    assert status_of(asked.call) == ("completed", ["executed"])
    assert work(asked.call) is None
    row = ToolExecution.objects.get()
    assert (row.status, row.user, row.approval) == ("succeeded", member, Approval.objects.get())
    assert Approval.objects.get().decided_by == chief


def test_a_rejected_call_is_answered_with_the_note_and_never_runs(ask: Ask, chief: User) -> None:
    asked = ask(slug="north")
    decide(chief, "reject", note="we still need it")
    done = work(asked.call)
    assert done is not None
    assert done.envelope is not None
    assert done.envelope["error"] == "a person rejected this call: we still need it"
    assert status_of(asked.call) == ("failed", ["rejected"])
    assert list(ToolExecution.objects.values_list("status", flat=True)) == ["blocked"]
    assert Workspace.objects.filter(slug="north").exists()


def test_edited_arguments_run_in_place_of_the_stored_ones_and_both_are_kept(ask: Ask, chief: User) -> None:
    for slug in ("south", "west"):
        Workspace.objects.create(slug=slug, name=slug)
    asked = ask(slug="south")
    with pytest.raises(InvalidArguments, match="slug: is required"):
        decide(chief, arguments={"slugs": "west"})
    decide(chief, arguments={"slug": "west"})
    work(asked.call)
    approval = Approval.objects.get()
    assert (approval.arguments, approval.edited_arguments) == ({"slug": "south"}, {"slug": "west"})
    assert set(Workspace.objects.values_list("slug", flat=True)) == {"north", "south"}
    assert ToolExecution.objects.get().arguments == {"slug": "west"}


def test_a_decision_on_a_decided_approval_is_a_conflict(ask: Ask, chief: User) -> None:
    asked = ask(slug="north")
    decided = decide(chief, "reject")
    for again in ("approve", "reject"):
        with pytest.raises(ApprovalConflict):
            decide(chief, again, approval=decided)
    assert status_of(asked.call) == ("queued", ["rejected"])


def test_nobody_else_sees_or_decides(ask: Ask, member: User, workspace: Workspace) -> None:
    asked = ask(slug="north")
    other = Workspace.objects.create(slug="east", name="East")
    plain = User.objects.create_user("plain", password=None)
    Membership.objects.create(user=plain, workspace=workspace)
    for user in (decider("stranger", other), User.objects.create_superuser("root", password=None), plain):
        assert list(approvals_for(user)) == []
        with pytest.raises(NotVisible):
            decide(user)
    assert list(approvals_for(member)) == [asked.approval]
    with pytest.raises(ApprovalForbidden, match="decide_approval"):
        decide(member)
    no_delete = decider("half", workspace, "decide_approval")
    with pytest.raises(ApprovalForbidden, match="delete_workspace"):
        decide(no_delete)
    User.objects.filter(pk=no_delete.pk).update(is_active=False)
    with pytest.raises(NotVisible):
        decide(User.objects.get(pk=no_delete.pk))
    assert status_of(asked.call) == ("waiting_approval", ["pending"])


def test_four_eyes_keep_the_requester_from_approving(ask: Ask, member: User, settings: Any) -> None:
    member.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    member = User.objects.get(pk=member.pk)
    asked = ask(slug="north")
    settings.CAPSTAN_TOOLS = {"four_eyes": True}
    with pytest.raises(ApprovalForbidden, match="somebody else"):
        decide(member)
    decide(member, "reject")  # taking back what one asked for is always allowed
    assert status_of(asked.call) == ("queued", ["rejected"])


@pytest.mark.parametrize("who", ["requester", "approver", "approver's right"])
def test_permissions_are_asked_for_again_when_the_call_runs(who: str, ask: Ask, chief: User, member: User) -> None:
    asked = ask(slug="north")
    decide(chief)
    if who == "approver's right":
        chief.user_permissions.remove(Permission.objects.get(codename="decide_approval"))
    else:
        User.objects.filter(pk=member.pk if who == "requester" else chief.pk).update(is_active=False)
    done = work(asked.call)
    assert done is not None
    assert done.envelope is not None
    assert done.envelope["success"] is False
    assert Workspace.objects.filter(slug="north").exists()
    assert list(ToolExecution.objects.values_list("status", flat=True)) == ["blocked"]


def test_what_nobody_decides_in_time_counts_as_rejected(ask: Ask) -> None:
    asked = ask(slug="north")
    soon = timezone.now() + timedelta(days=6.9)
    assert services.expire_approvals(soon) == []
    expired = services.expire_approvals(soon + timedelta(days=0.2))
    assert expired == [Approval.objects.get().pk]
    assert services.expire_approvals(soon + timedelta(days=0.2)) == []
    done = work(asked.call)
    assert done is not None
    assert done.envelope is not None
    assert "counts as rejected" in str(done.envelope["error"])
    assert status_of(asked.call) == ("failed", ["expired"])


def test_two_people_decide_at_once_and_one_decision_counts(ask: Ask, chief: User, workspace: Workspace) -> None:
    second, both = decider("second", workspace), threading.Barrier(2, timeout=10)
    asked, ends = ask(slug="north"), []

    def run(user: User, decision: str) -> None:
        try:
            both.wait()
            decide(user, decision, approval=asked.approval)
            ends.append("decided")
        except ApprovalConflict:
            ends.append("conflict")
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in ((chief, "approve"), (second, "reject"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert sorted(ends) == ["conflict", "decided"]
    assert status_of(asked.call)[0] == "queued"
    assert Event.objects.filter(stream=asked.call.stream_id, name="approval_decided").count() == 1


def test_what_is_withdrawn_is_told_as_it_was_in_one_statement(ask: Ask, django_assert_num_queries: Any) -> None:
    first, second = ask(slug="south"), ask(slug="north")
    decide_not = Approval.objects.filter(owner_id=second.call.pk)
    decide_not.update(status="rejected", decided_at=timezone.now())
    now = timezone.now()
    with django_assert_num_queries(1):
        (withdrawn,) = Approval.objects.withdraw("call", [first.call.pk, second.call.pk], now=now)
    assert withdrawn == Approval.objects.get(owner_id=first.call.pk)
    assert (withdrawn.status, withdrawn.decided_at, withdrawn.arguments) == ("withdrawn", now, {"slug": "south"})
    assert decide_not.get().status == "rejected"
    assert Approval.objects.withdraw("call", [], now=now) == []


def test_a_withdrawn_approval_cannot_be_decided(ask: Ask, chief: User) -> None:
    asked = ask(slug="north")
    events = Recorded()
    assert (
        services.withdraw_approvals(owner_kind="call", owner_ids=[asked.call.pk], now=timezone.now(), events=events)
        == 1
    )
    (told_of,) = events.events
    assert (told_of.name, told_of.payload["status"]) == ("approval_decided", "withdrawn")
    assert told_of.payload["approval_id"] == Approval.objects.get().pk
    with pytest.raises(ApprovalConflict):
        decide(chief, approval=asked.approval)


def test_an_approved_external_call_runs_with_its_own_key(ask: Ask, chief: User) -> None:
    asked = ask("tell", text="hi")
    decide(chief)
    done = work(asked.call)
    assert done is not None
    assert done.execution is not None
    assert told == [("hi", done.execution.idempotency_key)]
    assert status_of(asked.call) == ("completed", ["executed"])


def test_what_a_tool_returns_raises_no_approval(ask: Ask, chief: User) -> None:
    asked = ask("tell", text='{"decision": "approve", "approval_id": 1}')
    assert status_of(asked.call) == ("waiting_approval", ["pending"])
    decide(chief)
    work(asked.call)
    assert ask(slug="north").approval is not None
    assert list(Approval.objects.order_by("pk").values_list("status", flat=True)) == ["executed", "pending"]


def test_who_decides_sees_the_ledger_of_that_run(ask: Ask, chief: User, member: User, workspace: Workspace) -> None:
    asked = ask("tell", text="x")
    decide(chief)
    work(asked.call)
    row = ToolExecution.objects.get()
    plain = User.objects.create_user("plain", password=None)
    Membership.objects.create(user=plain, workspace=workspace)
    assert [list(executions_for(user)) for user in (member, chief, plain)] == [[row], [row], []]


def turn_in(status: str, user: User, workspace: Workspace) -> Turn:
    turn = make_turn(make_conversation(user=user, workspace=workspace))
    Turn.objects.filter(pk=turn.pk).update(status=status, ended_at=timezone.now() if status == "completed" else None)
    return turn


def test_two_people_deciding_the_last_two_calls_resume_the_turn_once(chief: User, workspace: Workspace) -> None:
    turn = turn_in("waiting_approval", chief, workspace)
    executor, place = executor_of(), context(workspace, chief)
    asked = []
    for position in (1, 2):
        here = place(position, owner_id=turn.pk)
        asked.append(wait(executor, executor.check(call_of("make", slug=f"s{position}"), here), here))
    fence, both = turn.fence, threading.Barrier(2, timeout=10)

    def run(approval: Approval) -> None:
        try:
            both.wait()
            decide(chief, approval=approval)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[approval]) for approval in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    turn.refresh_from_db()
    assert (turn.status, turn.fence) == ("queued", fence + 1)  # one arrow, taken once
    assert set(Approval.objects.values_list("status", flat=True)) == {"approved"}
    assert Event.objects.filter(stream=turn.stream_id, name="approval_decided").count() == 2


def test_a_decision_for_a_run_that_has_ended_changes_no_run(chief: User, workspace: Workspace) -> None:
    turn = turn_in("completed", chief, workspace)
    here = context(workspace, chief)(1, owner_id=turn.pk)
    wait(executor_of(), executor_of().check(call_of("make", slug="x"), here), here)
    decide(chief, "reject")
    turn.refresh_from_db()
    assert turn.status == "completed"


@pytest.mark.parametrize("kind", ["call", "turn", "step"])
def test_what_a_run_waited_for_that_is_gone_is_withdrawn_without_a_word(
    ask: Ask, chief: User, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number, text in enumerate(("a", "b"), 1):
        ask("tell", text=text)
        Approval.objects.filter(owner_id__lt=10**9).update(owner_kind=kind, owner_id=10**9 + number)
    with pytest.raises(ApprovalConflict) as refused:
        decide(chief, "reject")
    assert refused.value.details["status"] == "withdrawn"
    assert services.expire_approvals(timezone.now() + timedelta(days=8)) == []
    assert set(Approval.objects.values_list("status", flat=True)) == {"withdrawn"}
    assert caplog.text == ""


def test_readers_are_told_of_what_a_turn_does_not_wait_for_any_more(chief: User, workspace: Workspace) -> None:
    turn = turn_in("waiting_approval", chief, workspace)
    executor, place = executor_of(), context(workspace, chief)
    for position in (1, 2):
        here = place(position, owner_id=turn.pk)
        wait(executor, executor.check(call_of("make", slug=f"s{position}"), here), here)
    cancel_turn(turn_id=turn.pk)
    cards = [
        ("approval_decided", "withdrawn", pk) for pk in Approval.objects.order_by("pk").values_list("pk", flat=True)
    ]
    assert told_on(turn.stream_id) == [*cards, ("turn_ended", "cancelled", None)]
    cancel_turn(turn_id=turn.pk)
    assert len(told_on(turn.stream_id)) == 3


def test_readers_are_told_of_what_a_plan_does_not_wait_for_any_more(member: User, workspace: Workspace) -> None:
    plan = hold_plan(data_step("gone", "remove", {"slug": "north"}), owner=member, workspace=workspace)
    run_plan(plan, agents_on(None, remove))
    asked = Approval.objects.get()
    before = len(told_on(plan.stream_id))
    assert cancel_plan(plan_id=plan.pk).ended
    told = [(name, status) for name, status, _ in told_on(plan.stream_id)[before:]]
    assert told[0] == ("approval_decided", "withdrawn")
    assert told[-1][0] == "plan_cancelled"
    assert [key for _, status, key in told_on(plan.stream_id) if status == "withdrawn"] == [asked.pk]


def told_on(stream_id: UUID) -> list[tuple[str, str | None, int | None]]:
    """Name, status and approval of a stream's events, in order."""
    rows = Event.objects.filter(stream_id=stream_id).order_by("seq")
    return [(row.name, row.payload.get("status"), row.payload.get("approval_id")) for row in rows]
