"""Who sees which plans, and what they look like."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.models import Event
from plan import services
from plan.models import ExecutionPlan, PlanStep
from plan.queries import graph, plan_detail, visible_plan, visible_plans
from tests.support.plans import agents_on, hold_plan, llm_step, run_plan
from tests.support.runs import make_conversation, make_user, make_workspace
from tools.units import intervention
from workspaces.errors import NotVisible

pytestmark = pytest.mark.django_db


def test_people_see_their_own_plans_and_with_view_all_their_workspaces():
    mia, tom = make_user(), make_user()
    workspace, elsewhere = make_workspace(mia, tom), make_workspace(mia)
    mine = hold_plan(llm_step("a"), owner=mia, workspace=workspace)
    other = hold_plan(llm_step("a"), owner=mia, workspace=elsewhere)
    assert set(visible_plans(mia)) == {mine, other}
    assert list(visible_plans(tom)) == []
    with pytest.raises(NotVisible):
        visible_plan(tom, mine.pk)
    auditors = Group.objects.create(name="auditors")
    auditors.permissions.add(Permission.objects.get(codename="view_all"))
    tom.memberships.get(workspace=workspace).groups.add(auditors)
    assert visible_plan(tom, mine.pk) == mine
    with pytest.raises(NotVisible):
        visible_plan(tom, other.pk)
    tom.memberships.all().delete()
    assert list(visible_plans(tom)) == []


@pytest.mark.django_db(transaction=True)
def test_a_plan_shows_its_steps_with_their_syntheses(scripted_llm, django_assert_num_queries):
    plan = hold_plan(llm_step("a"), llm_step("b", reads=()), llm_step("c", reads=("a", "b")))
    run_plan(plan, agents_on(scripted_llm("A.", "A.", "C.")))
    with django_assert_num_queries(1):
        shown = plan_detail(plan)
    assert (shown["status"], [step["llm_synthesis"] for step in shown["steps"]]) == ("completed", ["A.", "A.", "C."])
    assert shown["steps"][2]["reads"] == ["a", "b"]
    assert shown["board"] == {}
    drawn = graph(plan)
    assert [(node["key"], node["layer"], node["row"]) for node in drawn["nodes"]] == [
        ("a", 0, 0),
        ("b", 0, 1),
        ("c", 1, 0),
    ]
    assert drawn["edges"] == [{"from": "a", "to": "c"}, {"from": "b", "to": "c"}]


def test_a_graph_reads_what_was_said_since_its_plan_was_made():
    """A plan late in a long conversation among others; PostgreSQL says how many events it looked at."""
    plan, others = hold_plan(llm_step("a")), [make_conversation().pk for _ in range(9)]
    table, older = Event._meta.db_table, 2_000
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET seq = seq + %s WHERE stream_id = %s", [older, plan.stream_id])
        cursor.execute(
            f"""INSERT INTO {table} (stream_id, seq, name, payload, correlation_id, created_at)
                SELECT s, n, 'plan_step', '{{"plan_id": 0, "step": "a", "status": "running"}}', 'c', now()
                FROM unnest(%s) s, generate_series(1, %s) n""",
            [[plan.stream_id, *others], older],
        )
        cursor.execute(f"ANALYZE {table}")
    with CaptureQueriesContext(connection) as seen:
        graph(plan)
    [sql] = [query["sql"] for query in seen.captured_queries if table in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.replace('%', '%%')}", [])
        [[found]] = cursor.fetchone()
    assert looked_at(found["Plan"], table) < 50, found


def looked_at(node: dict[str, Any], table: str) -> int:
    """How many rows of a table the nodes of a plan have read."""
    own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) if node.get("Relation Name") == table else 0
    return int(own + sum(looked_at(each, table) for each in node.get("Plans", [])))


def test_a_graph_says_when_its_steps_waited_and_what_they_are(django_assert_num_queries):
    plan = hold_plan(llm_step("a", is_critical=False), llm_step("b", reads=()), llm_step("c"))
    other = hold_plan(llm_step("a"), owner=plan.owner, workspace=plan.workspace)
    step = PlanStep.objects.get(plan=plan, key="a")

    def move(arrow: str, **columns: object) -> None:
        with intervention(ExecutionPlan, plan.pk) as change:
            assert getattr(PlanStep.objects, arrow)(step.pk, **columns)
            step.refresh_from_db()
            services.record_step(step, events=change)

    move("start")
    move("wait_for_retry", seconds=0, error="429")
    PlanStep.objects.retry_due(plan.pk)
    move("start")
    move("wait_for_approval")
    plan.refresh_from_db()
    with django_assert_num_queries(2):
        drawn = graph(plan)
    first, second, _ = drawn["nodes"]
    assert [(wait["status"], wait["until"] is None) for wait in first["waits"]] == [
        ("waiting_retry", False),
        ("waiting_approval", True),
    ]
    assert first["waits"][0]["since"] < first["waits"][0]["until"] <= first["waits"][1]["since"]
    assert (first["is_critical"], second["is_critical"], second["waits"]) == (False, True, [])
    with django_assert_num_queries(2):
        assert graph(other)["nodes"][0]["waits"] == []
    with intervention(ExecutionPlan, plan.pk) as change:
        services.cancelled(plan, events=change)
    ExecutionPlan.objects.move(
        plan.pk, frm={"pending"}, to="cancelled", ended_at=first["waits"][1]["since"] + timedelta(seconds=5)
    )
    plan.refresh_from_db()
    assert graph(plan)["nodes"][0]["waits"][1]["until"] == plan.ended_at
