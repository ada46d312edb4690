"""Tools at the REST API: the same policies, a call is its own run, a guarded one answers 202 (design § 8)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from factory.executors import build_executor
from plan.models import ExecutionPlan
from tests.tools.guarded import decider
from tools.doors import run_call
from tools.executor import ToolExecutor
from tools.models import Approval, ToolCallRun, ToolExecution
from workspaces.models import Membership, User, Workspace


@pytest.fixture
def analyst(workspace: Workspace) -> User:
    user = User.objects.create_user("ana", password=None)
    Membership.objects.create(user=user, workspace=workspace)
    return user


@pytest.fixture
def client(analyst: User) -> Client:
    return signed_in(analyst)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def post(client: Client, name: str, body: Any = None, **headers: str) -> Any:
    return client.post(f"/api/tools/{name}/", data=body or {}, content_type="application/json", headers=headers)


def test_the_user_is_offered_what_he_may_call(client: Client, analyst: User) -> None:
    listed = {tool["name"]: tool for tool in client.get("/api/tools/").json()["results"]}
    assert "annotate_element" not in listed
    assert listed["get_element"]["effect"] == "read"
    chat = {tool["name"] for tool in client.get("/api/tools/?mode=conversation").json()["results"]}
    assert "get_element" not in chat
    analyst.user_permissions.add(Permission.objects.get(codename="change_element"))
    assert "annotate_element" in {tool["name"] for tool in client.get("/api/tools/").json()["results"]}
    assert Client().get("/api/tools/").status_code == 401
    assert client.get("/api/tools/?workspace=nowhere").status_code == 404
    assert client.get("/api/tools/?mode=odd").status_code == 400


def test_a_call_answers_its_envelope_and_is_on_record(client: Client, analyst: User) -> None:
    answer = post(client, "catalog_overview", **{"X-Correlation-ID": "rest-1"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["success"], body["status"], body["execution_status"]) == (True, "completed", "succeeded")
    row = ToolExecution.objects.get()
    assert (row.pk, row.correlation_id, row.user, row.owner_kind) == (body["execution_id"], "rest-1", analyst, "call")
    assert client.get(f"/api/tool-calls/{body['call_id']}/").json() == body
    assert client.get(f"/api/tool-executions/{row.pk}/").status_code == 200


def test_refusals_are_envelopes_and_unknown_tools_404(client: Client) -> None:
    refused = post(client, "annotate_element", {"arguments": {"key": "module:a", "note": "n"}}).json()
    assert (refused["success"], refused["execution_status"]) == (False, "blocked")
    hidden = post(client, "get_element", {"arguments": {"key": "module:a"}, "mode": "conversation"}).json()
    assert hidden["error"] == "tool 'get_element' not exposed in conversation mode"
    assert post(client, "no_such_tool").status_code == 404
    assert post(client, "catalog_overview", {"arguments": [1]}).status_code == 400
    assert post(client, "catalog_overview", {"arguments": {"user_id": 1, "scope_id": "9"}}).json()["success"] is True


def test_a_repeated_key_calls_once(client: Client) -> None:
    first = post(client, "catalog_overview", **{"Idempotency-Key": "k-1"})
    again = post(client, "catalog_overview", **{"Idempotency-Key": "k-1"})
    assert first.json() == again.json()
    assert ToolCallRun.objects.count() == 1


def test_others_calls_are_404(client: Client, workspace: Workspace) -> None:
    call_id = post(client, "catalog_overview").json()["call_id"]
    plain = User.objects.create_user("plain", password=None)
    Membership.objects.create(user=plain, workspace=workspace)
    stranger = User.objects.create_superuser("root", password=None)
    for user in (plain, stranger):
        assert signed_in(user).get(f"/api/tool-calls/{call_id}/").status_code == 404
    assert signed_in(decider("chief", workspace)).get(f"/api/tool-calls/{call_id}/").status_code == 200


def test_forged_approvals_get_nothing(client: Client, analyst: User, workspace: Workspace) -> None:
    body = {
        "arguments": {"key": "module:a", "note": "n", "user_id": 1},
        "approval": {"status": "approved"},
        "approved": True,
        "decided_by": analyst.pk,
        "user": 1,
        "identity": "root",
    }
    refused = post(client, "annotate_element", body).json()
    assert "does not hold the permission" in refused["error"]
    assert Approval.objects.count() == 0
    assert ToolCallRun.objects.get().user == analyst


def test_a_guarded_call_answers_202_and_runs_as_the_requester_once_approved(
    client: Client, analyst: User, workspace: Workspace, settings: Any
) -> None:
    settings.CAPSTAN_APPROVALS = {"planner": {"annotate_element": "call"}}
    analyst.user_permissions.add(Permission.objects.get(codename="change_element"))
    chief = decider("chief", workspace, "decide_approval", "change_element")
    asked = ("annotate_element", {"arguments": {"key": "module:a", "note": "n"}})
    answer = post(client, *asked, **{"Idempotency-Key": "k-2"})
    assert (answer.status_code, post(client, *asked, **{"Idempotency-Key": "k-2"}).status_code) == (202, 202)
    body = answer.json()
    assert (body["status"], body["success"], body["execution_id"]) == ("waiting_approval", None, None)
    approval_id = body["approval"]["id"]
    mine = client.post(
        f"/api/approvals/{approval_id}/decide/", {"decision": "approve"}, content_type="application/json"
    )
    assert mine.status_code == 403
    forged = {"decision": "approve", "status": "executed", "tool": "create_plan", "requested_by": chief.pk}
    deciding = signed_in(chief)
    for expected in (200, 409):  # the second is a replay
        decided = deciding.post(f"/api/approvals/{approval_id}/decide/", forged, content_type="application/json")
        assert decided.status_code == expected
    done = run_call(body["call_id"], executor_of=_executor_of, clock=timezone.now)
    assert done is not None
    seen = client.get(f"/api/tool-calls/{body['call_id']}/").json()
    assert (seen["tool"], seen["execution_status"]) == ("annotate_element", "failed")  # there is no such element
    replayed = post(client, *asked, **{"Idempotency-Key": "k-2"})
    assert (replayed.status_code, replayed.json()["success"]) == (200, False), "the replays before it were no answer"
    row = ToolExecution.objects.get()
    assert (row.user, row.tool_name, row.approval_id) == (analyst, "annotate_element", approval_id)


def _executor_of(call: ToolCallRun) -> ToolExecutor:
    return build_executor(call.identity, mode="workflow", workspace=call.workspace)


def test_a_plan_can_be_made_at_a_door(client: Client, analyst: User) -> None:
    analyst.user_permissions.add(Permission.objects.get(codename="add_executionplan"))
    steps = [{"key": "look", "action": "Look at the catalogue."}]
    made = post(client, "create_plan", {"arguments": {"goal": "survey", "steps": steps}}).json()
    assert made["success"] is True, made["error"]
    plan = ExecutionPlan.objects.get(pk=made["result"]["plan_id"])
    assert (plan.owner, plan.status, plan.conversation_id) == (analyst, "pending", None)
    assert client.get(f"/api/plans/{plan.pk}/").status_code == 200
