"""Looking at a plan's shape and changing it, through the API (CAP-055, CAP-080)."""

from __future__ import annotations

import pytest
from django.test import Client
from rest_framework.authtoken.models import Token

from plan.models import ExecutionPlan, PlanChange, PlanStep
from tests.support.plans import hold_plan, llm_step
from tests.support.runs import make_user
from tools.models import ToolExecution

pytestmark = pytest.mark.django_db


@pytest.fixture
def plan() -> ExecutionPlan:
    return hold_plan(llm_step("a"), llm_step("b"))


def client_of(user) -> Client:
    return Client(headers={"authorization": f"Token {Token.objects.create(user=user).key}"})


def post(client: Client, path: str, body: object):
    return client.post(f"/api/plans/{path}", body, content_type="application/json")


def end(plan: ExecutionPlan, status: str = "failed") -> None:
    PlanStep.objects.filter(plan=plan, key="a").update(status="completed", llm_synthesis="said")
    PlanStep.objects.filter(plan=plan, key="b").update(status="failed", error="no")
    ExecutionPlan.objects.filter(pk=plan.pk).update(status=status, ended_at=plan.created_at)


def test_the_graph_of_a_plan(plan):
    answer = client_of(plan.owner).get(f"/api/plans/{plan.pk}/graph/")
    assert answer.status_code == 200
    assert [node["key"] for node in answer.json()["nodes"]] == ["a", "b"]
    assert answer.json()["edges"] == [{"from": "a", "to": "b"}]


def test_pending_steps_are_changed(plan):
    body = {"changes": [{"op": "insert", "key": "c", "after": "b", "action": "Do c."}, {"op": "remove", "key": "a"}]}
    answer = post(client_of(plan.owner), f"{plan.pk}/adapt/", body)
    assert answer.status_code == 200, answer.json()
    assert [(step["key"], step["reads"]) for step in answer.json()["steps"]] == [("b", []), ("c", ["b"])]
    assert PlanChange.objects.count() == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 400),
        ({"changes": []}, 400),
        ({"changes": [{"op": "explode"}]}, 400),
        ({"changes": [{"op": "remove", "key": "nowhere"}]}, 400),
        ({"changes": [{"op": "insert", "key": "c", "action": "x", "tool_name": "no_such_tool"}]}, 400),
        ({"changes": [{"op": "remove", "key": "a"}, {"op": "update", "key": "a", "action": "x"}]}, 400),
    ],
)
def test_a_change_that_does_not_fit_is_refused_and_named(plan, body, code):
    answer = post(client_of(plan.owner), f"{plan.pk}/adapt/", body)
    assert (answer.status_code, "error" in answer.json()) == (code, True)
    assert PlanStep.objects.filter(plan=plan).count() == 2


def test_what_has_begun_conflicts(plan):
    PlanStep.objects.filter(key="a").update(status="running")
    answer = post(client_of(plan.owner), f"{plan.pk}/adapt/", {"changes": [{"op": "remove", "key": "a"}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "plan.conflict")


def test_a_fork_from_scratch_lists_what_was_written(plan):
    end(plan)
    step = PlanStep.objects.get(plan=plan, key="b")
    ToolExecution.objects.create(
        workspace=plan.workspace, user=plan.owner, correlation_id="c", owner_kind="step", owner_id=step.pk,
        plan_id=plan.pk, round=1, position=1, tool_name="annotate_element", effect="write", mode="workflow",
        arguments={"note": "x"}, arguments_digest="d", idempotency_key="k", status="succeeded",
    )  # fmt: skip
    answer = post(client_of(plan.owner), f"{plan.pk}/fork/", {"step": "b", "from_scratch": True})
    assert answer.status_code == 202, answer.json()
    assert [(s["key"], s["status"]) for s in answer.json()["steps"]] == [("a", "completed"), ("b", "pending")]
    assert answer.json()["written_before"] == [
        {"step": "b", "tool": "annotate_element", "arguments": {"note": "x"}, "status": "succeeded"}
    ]


def test_a_living_plan_is_not_forked(plan):
    assert post(client_of(plan.owner), f"{plan.pk}/fork/", {"step": "b"}).status_code == 409


def test_a_person_assesses_an_ended_step(plan):
    end(plan)
    answer = post(client_of(plan.owner), f"{plan.pk}/steps/a/assess/", {"satisfaction": 4, "suggestion": "Shorter."})
    assert answer.status_code == 200, answer.json()
    assert answer.json()["outcome"] == {"assessment": "", "satisfaction": 4, "suggestion": "Shorter."}
    assert post(client_of(make_user()), f"{plan.pk}/steps/a/assess/", {"satisfaction": 4}).status_code == 404


@pytest.mark.parametrize("path", ["graph/", "adapt/", "fork/", "steps/a/assess/"])
def test_a_stranger_s_plan_is_not_there(plan, path):
    client = client_of(make_user())
    bodies = {
        "adapt/": {"changes": [{"op": "remove", "key": "a"}]},
        "fork/": {"step": "a"},
        "steps/a/assess/": {"satisfaction": 3},
    }
    url = f"/api/plans/{plan.pk}/{path}"
    answer = client.get(url) if path == "graph/" else client.post(url, bodies[path], content_type="application/json")
    assert answer.status_code == 404
