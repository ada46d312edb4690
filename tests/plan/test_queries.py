"""Who sees which plans, and what they look like."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission

from plan.queries import graph, plan_detail, visible_plan, visible_plans
from tests.support.plans import agents_on, hold_plan, llm_step, run_plan
from tests.support.runs import make_user, make_workspace
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
    drawn = graph(plan)
    assert [(node["key"], node["layer"], node["row"]) for node in drawn["nodes"]] == [
        ("a", 0, 0),
        ("b", 0, 1),
        ("c", 1, 0),
    ]
    assert drawn["edges"] == [{"from": "a", "to": "c"}, {"from": "b", "to": "c"}]
