"""Writes that wait for a person: who may decide, what runs then, and that nothing runs twice (CAP-033)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.utils import timezone

from chat.models import Turn
from events.models import Event
from prompt.types import AgentIdentity
from tests.support.runs import make_conversation, make_turn
from tests.tools.conftest import call_of
from tools import services
from tools.doors import CallResult, call_tool, run_call
from tools.errors import ApprovalConflict, ApprovalForbidden, InvalidArguments
from tools.executor import ToolExecutor
from tools.models import Approval, ToolCallRun, ToolExecution
from tools.queries import approvals_for, executions_for
from tools.registry import Registry, tool
from tools.types import ToolContext
from workspaces.errors import NotVisible
from workspaces.models import Membership, User, Workspace

ADD, DELETE = "capstan_workspaces.add_workspace", "capstan_workspaces.delete_workspace"

tools = Registry()


@tool(effect="write", permission=DELETE, destructive=True, summary="Delete the workspace {slug}", registry=tools)
def remove(slug: str) -> str:
    """Delete a workspace."""
    Workspace.objects.get(slug=slug).delete()
    return f"{slug} is gone"


@tool(effect="external", permission=ADD, approval="call", registry=tools)
def tell(text: str, context: ToolContext) -> str:
    """Tell the world."""
    told.append((text, context.idempotency_key))
    return text


@tool(effect="write", permission=ADD, approval="turn", registry=tools)
def make(slug: str) -> str:
    """Make a workspace."""
    return Workspace.objects.create(slug=slug, name=slug).slug


told: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    told.clear()


@pytest.fixture
def chief(workspace: Workspace) -> User:
    return decider("chief", workspace)


def decider(name: str, workspace: Workspace, *permissions: str) -> User:
    wanted = permissions or ("decide_approval", "add_workspace", "delete_workspace")
    user = User.objects.create_user(name, password=None)
    Membership.objects.create(user=user, workspace=workspace)
    user.user_permissions.add(*Permission.objects.filter(codename__in=wanted))
    return User.objects.get(pk=user.pk)


IDENTITY = AgentIdentity(name="tester", system_tone="", allowed_tools=frozenset({"remove", "tell", "make"}))


def executor_of(call: ToolCallRun | None = None) -> ToolExecutor:
    return ToolExecutor(tools, IDENTITY, mode="workflow")


Ask = Callable[..., CallResult]


@pytest.fixture
def ask(workspace: Workspace, member: User) -> Ask:
    """The member calls a guarded tool at a door."""

    def make_call(name: str = "remove", **arguments: Any) -> CallResult:
        return call_tool(
            executor=executor_of(),
            user=member,
            workspace=workspace,
            name=name,
            arguments=arguments,
            door="rest",
            correlation_id="c-9",
            clock=timezone.now,
        )

    return make_call


def work(call: ToolCallRun) -> CallResult | None:
    """What the worker does once it is told."""
    return run_call(call.pk, executor_of=executor_of, clock=timezone.now)


def decide(user: User, decision: Any = "approve", **more: Any) -> Approval:
    """Decide about the oldest approval that waits."""
    waiting = more.pop("approval", None) or Approval.objects.pending().earliest("pk")
    return services.decide(
        approval_id=waiting.pk, user=user, decision=decision, now=timezone.now(), tools=tools, **more
    )


def status_of(call: ToolCallRun) -> tuple[str, list[str]]:
    call.refresh_from_db()
    return call.status, list(Approval.objects.order_by("pk").values_list("status", flat=True))


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


def test_a_withdrawn_approval_cannot_be_decided(ask: Ask, chief: User) -> None:
    asked = ask(slug="north")
    assert services.withdraw_approvals(owner_kind="call", owner_ids=[asked.call.pk], now=timezone.now()) == 1
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

    who = AgentIdentity(**{**_fields(IDENTITY), "approvals": {"make": "conversation"}})
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
    who = AgentIdentity(**{**_fields(IDENTITY), "approvals": {"remove": "never", "tell": "never"}})
    executor, place = ToolExecutor(tools, who, mode="workflow"), context(workspace, member, identity=who)
    assert executor.check(call_of("remove", slug="north"), place(1)).kind == "parked"
    assert executor.check(call_of("tell", text="x"), place(2)).kind == "external"


def test_a_decision_holds_though_the_policy_was_loosened_since(ask: Ask, chief: User) -> None:
    loose = AgentIdentity(**{**_fields(IDENTITY), "approvals": {"tell": "never"}})
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


def _fields(identity: AgentIdentity) -> dict[str, Any]:
    return {name: getattr(identity, name) for name in AgentIdentity.__dataclass_fields__}


def context(workspace: Workspace, user: User, identity: AgentIdentity = IDENTITY) -> Callable[..., ToolContext]:
    """Contexts of calls of one turn."""

    def place(position: int, **values: Any) -> ToolContext:
        given: dict[str, Any] = {"owner_kind": "turn", "owner_id": 7, "round": 1, "conversation_id": None} | values
        return ToolContext(
            user=user,
            workspace=workspace,
            identity=identity,
            mode="workflow",
            position=position,
            correlation_id="c-1",
            idempotency_key="k",
            now=timezone.now(),
            **given,
        )

    return place


def wait(executor: ToolExecutor, checked: Any, place: ToolContext) -> Approval:
    from tools.executor import _OwnUnit

    return executor.park(_OwnUnit(), checked, place)


def decide_row(approval: Approval, by: User) -> None:
    """Approve where no run has to go on."""
    Approval.objects.decide(
        approval.pk, to="approved", by=by, note="", now=timezone.now(), decided_digest=approval.arguments_digest
    )


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
