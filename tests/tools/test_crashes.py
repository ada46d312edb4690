"""External calls that a crash cut off: never run again blindly (design § 6 "Ledger")."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import transaction
from django.utils import timezone

from llm.types import ToolCall
from prompt.types import AgentIdentity
from tools import services
from tools.doors import CallResult, call_result, call_tool, fail_spent_calls, run_call
from tools.executor import ToolExecutor
from tools.models import Approval, Question, ToolCallRun, ToolExecution
from tools.registry import Registry, tool
from tools.runs import MAX_ATTEMPTS
from tools.types import ToolContext, idempotency_key
from workspaces.models import User, Workspace

ADD = "capstan_workspaces.add_workspace"
local = Registry()
world: list[str] = []


def _look(context: ToolContext, text: str) -> str | None:
    return f"found {text}" if context.idempotency_key in world else None


@tool(effect="external", permission=ADD, registry=local)
def tell(text: str, context: ToolContext) -> str:
    """Tell the world."""
    world.append(context.idempotency_key)
    return text


@tool(effect="external", permission=ADD, idempotent=True, registry=local)
def notify(text: str, context: ToolContext) -> str:
    """Tell the world as often as you like."""
    world.append(context.idempotency_key)
    return text


@tool(effect="external", permission=ADD, probe=_look, registry=local)
def make(text: str, context: ToolContext) -> str:
    """Make something that can be looked for."""
    world.append(context.idempotency_key)
    return text


IDENTITY = AgentIdentity(name="tester", system_tone="", allowed_tools=frozenset({"tell", "notify", "make"}))


def executor_of(_: ToolCallRun | None = None) -> ToolExecutor:
    return ToolExecutor(local, IDENTITY, mode="workflow")


@pytest.fixture(autouse=True)
def _quiet_world() -> None:
    world.clear()


def cut_off(workspace: Workspace, member: User, name: str, *, happened: bool) -> ToolCallRun:
    """A call whose process died after its `started` row was committed, before or after it took effect."""
    from events.models import Stream
    from tools.executor import _OwnUnit

    call = ToolCallRun.objects.create(
        workspace=workspace,
        stream=Stream.objects.create(workspace=workspace),
        correlation_id="c-1",
        status=ToolCallRun.READY,
        user=member,
        identity="tester",
        mode="workflow",
        door="rest",
        tool_name=name,
        arguments={"text": "hi"},
    )
    key = idempotency_key("call", call.pk, 1, 1)
    context = ToolContext(
        user=member,
        workspace=workspace,
        identity=IDENTITY,
        mode="workflow",
        owner_kind="call",
        owner_id=call.pk,
        round=1,
        position=1,
        correlation_id="c-1",
        idempotency_key=key,
        now=timezone.now(),
    )
    executor = executor_of()
    with transaction.atomic():
        checked = executor.check(ToolCall(id="c", name=name, arguments={"text": "hi"}), context)
        executor.start_external(_OwnUnit(), checked, context)
    if happened:
        world.append(key)
    return call


def work(call: ToolCallRun) -> CallResult:
    done = run_call(call.pk, executor_of=executor_of, clock=timezone.now)
    assert done is not None
    return done


def ledger() -> str:
    return ToolExecution.objects.get().status


@pytest.mark.parametrize("happened", [True, False])
def test_an_idempotent_call_is_made_again_with_the_same_key(happened: bool, workspace: Workspace, member: User) -> None:
    call = cut_off(workspace, member, "notify", happened=happened)
    assert work(call).envelope == {"success": True, "result": "hi", "error": None}
    assert set(world) == {idempotency_key("call", call.pk, 1, 1)}
    assert ledger() == "succeeded"


@pytest.mark.parametrize(("happened", "result"), [(True, "found hi"), (False, "hi")])
def test_a_probe_tells_whether_a_call_happened(happened: bool, result: str, workspace: Workspace, member: User) -> None:
    call = cut_off(workspace, member, "make", happened=happened)
    assert work(call).envelope == {"success": True, "result": result, "error": None}
    assert len(world) == 1
    assert ledger() == "succeeded"


@pytest.mark.parametrize(("decision", "status"), [("approve", "succeeded"), ("reject", "failed")])
def test_else_a_person_is_asked_and_the_call_never_runs_again(
    decision: Any, status: str, workspace: Workspace, member: User
) -> None:
    member.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    call = cut_off(workspace, member, "tell", happened=True)
    asked = work(call).approval
    assert asked is not None
    assert (asked.question, asked.arguments) == (Question.HAPPENED, {"text": "hi"})
    assert ledger() == "unknown"
    chief = User.objects.get(pk=member.pk)
    services.decide(approval_id=asked.pk, user=chief, decision=decision, now=timezone.now(), note="I saw", tools=local)
    assert ledger() == status
    envelope = work(call).envelope
    assert envelope is not None
    assert envelope["success"] is (decision == "approve")
    assert "I saw" in str(envelope)
    assert len(world) == 1
    assert ToolExecution.objects.count() == 1


def test_when_nobody_answers_the_outcome_stays_unknown(workspace: Workspace, member: User) -> None:
    call = cut_off(workspace, member, "tell", happened=True)
    assert work(call).approval is not None
    assert len(services.expire_approvals(timezone.now().replace(year=2100))) == 1
    envelope = work(call).envelope
    assert envelope is not None
    assert "nobody could tell" in str(envelope["error"])
    assert ledger() == "unknown"
    assert len(world) == 1


def test_a_person_settles_an_unknown_outcome_once(workspace: Workspace, member: User) -> None:
    cut_off(workspace, member, "tell", happened=True)
    ToolExecution.objects.update(status="unknown")
    pk = ToolExecution.objects.get().pk

    def settle(workspaces: list[int]) -> bool:
        return services.settle_unknown(
            execution_id=pk, user=member, happened=True, now=timezone.now(), workspace_ids=workspaces
        )

    assert settle([workspace.pk + 1]) is False
    assert settle([workspace.pk]) is True
    assert settle([workspace.pk]) is False
    assert ledger() == "succeeded"
    assert Approval.objects.count() == 0


def test_settling_an_outcome_lets_the_run_go_on_that_waits_for_it(workspace: Workspace, member: User) -> None:
    call = cut_off(workspace, member, "tell", happened=True)
    assert work(call).approval is not None
    row = ToolExecution.objects.get()
    settled = services.settle_unknown(
        execution_id=row.pk, user=member, happened=True, now=timezone.now(), workspace_ids=[workspace.pk]
    )
    assert settled is True
    assert Approval.objects.get().status == "approved"
    envelope = work(call).envelope
    assert envelope is not None
    assert envelope["result"] == {"confirmed": "mia says that this call took effect"}


def test_an_approved_call_that_a_crash_cut_off_closes_its_approval(workspace: Workspace, member: User) -> None:
    call = cut_off(workspace, member, "tell", happened=True)
    assert work(call).approval is not None
    first = Approval.objects.get()
    run = Approval.objects.create(
        workspace=workspace,
        requested_by=member,
        owner_kind="call",
        owner_id=call.pk,
        round=1,
        position=1,
        tool_name="tell",
        policy="call",
        arguments={"text": "hi"},
        status="approved",
        expires_at=timezone.now(),
        decided_at=timezone.now(),
    )
    services.settle_unknown(
        execution_id=ToolExecution.objects.get().pk,
        user=member,
        happened=True,
        now=timezone.now(),
        workspace_ids=[workspace.pk],
    )
    run.refresh_from_db()
    first.refresh_from_db()
    assert (run.status, first.status) == ("executed", "approved")


def test_a_call_at_a_door_leaves_its_run_and_its_row(workspace: Workspace, member: User) -> None:
    done = call_tool(
        executor=executor_of(),
        user=member,
        workspace=workspace,
        name="tell",
        arguments={"text": "hi"},
        door="rest",
        correlation_id="c-2",
        clock=timezone.now,
    )
    assert done.envelope == {"success": True, "result": "hi", "error": None}
    done.call.refresh_from_db()
    assert done.execution is not None
    assert (done.call.status, done.execution.owner_kind, done.execution.owner_id) == ("completed", "call", done.call.pk)
    assert (done.execution.status, done.execution.correlation_id) == ("succeeded", "c-2")


def test_a_call_given_up_while_it_was_open_says_that_its_outcome_is_not_known(
    workspace: Workspace, member: User
) -> None:
    call = cut_off(workspace, member, "notify", happened=True)
    past = timezone.now() - timedelta(minutes=1)
    ToolCallRun.objects.filter(pk=call.pk).update(status="running", attempts=MAX_ATTEMPTS, lease_until=past)
    assert fail_spent_calls() == 1
    assert ledger() == "unknown"
    call.refresh_from_db()
    envelope = call_result(call).envelope
    assert envelope is not None
    assert (envelope["success"], "not known" in str(envelope["error"])) == (False, True)


def test_a_call_whose_rights_were_withdrawn_after_the_crash_stays_unknown(workspace: Workspace, member: User) -> None:
    call = cut_off(workspace, member, "notify", happened=True)
    member.user_permissions.clear()
    envelope = work(call).envelope
    assert envelope is not None
    assert (envelope["success"], "permission" in str(envelope["error"])) == (False, True)
    assert (ledger(), len(world)) == ("unknown", 1)
