"""`create_plan` and `adapt_plan` as tools: what steps may name, and what they leave of the snapshot's version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from context.models import ScopeVersion
from events.models import Stream
from plan.agent_tools import create_plan
from plan.models import ExecutionPlan, PlanStep
from prompt.errors import RecipeInvalid
from prompt.models import WorkflowTemplate
from prompt.types import AgentIdentity
from prompt.validate import check_recipe
from tests.support.plans import agents_on, data_step, hold_plan, run_plan
from tests.tools.conftest import context_of, member, workspace  # noqa: F401  # the fixtures of the policy layer
from tools.registry import Registry, tool
from tools.types import ToolContext
from tools.units import Unit
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()


@tool(effect="write", permission="capstan_workspaces.add_workspace", registry=registry)
def add_workspace(context: ToolContext, slug: str) -> str:
    """Add a workspace."""
    Workspace.objects.create(slug=slug, name=slug)
    return slug


@tool(effect="write", permission="capstan_workspaces.add_workspace", domain=False, registry=registry)
def note(context: ToolContext, slug: str) -> str:
    """Write something that no snapshot shows."""
    Workspace.objects.create(slug=slug, name=slug)
    return slug


def test_only_writes_of_domain_rows_make_snapshots_stale():
    plan = hold_plan(data_step("note", "note", {"slug": "a"}), data_step("add", "add_workspace", {"slug": "b"}))
    plan.owner.is_superuser = True
    plan.owner.save()
    before = ScopeVersion.objects.current(plan.workspace_id)
    versions: list[int] = []

    @tool(effect="read", registry=registry)
    def version(context: ToolContext) -> int:
        """Which version it is."""
        versions.append(ScopeVersion.objects.current(context.workspace.pk))
        return versions[-1]

    PlanStep.objects.filter(key="add").update(order=3)
    PlanStep.objects.create(
        plan=plan, key="between", order=2, kind="data", action="look", tool_name="version", reads=["note"]
    )
    run_plan(plan, agents_on(None, add_workspace, note, version))
    assert plan.status == "completed", plan.error
    assert (versions, ScopeVersion.objects.current(plan.workspace_id)) == ([before], before + 1)


@pytest.mark.parametrize("name", ["create_plan", "adapt_plan"])
def test_the_tools_that_make_plans_write_no_domain_rows(name):
    from tools.registry import registry as code

    spec = code().get(name)
    assert spec is not None
    assert not spec.domain


def test_a_step_may_name_a_tool_that_the_agent_has_by_a_pattern(context_of):  # noqa: F811
    who = AgentIdentity(name="planner", system_tone="", allowed_tools=frozenset({"create_plan", "catalog_*"}))
    context = context_of(identity=who)
    stream = Stream.objects.create(workspace=context.workspace)
    context = replace(context, stream_id=stream.pk, events=Unit(run=None))  # type: ignore[arg-type]
    step = {"key": "look", "action": "Look.", "tool_name": "catalog_overview"}
    made = create_plan(context, goal="Look at it", steps=[step])  # type: ignore[list-item]
    assert ExecutionPlan.objects.get(pk=made["plan_id"]).steps.get().tool_name == "catalog_overview"


def test_a_recipe_may_need_a_tool_that_the_agent_has_by_a_pattern():
    who = AgentIdentity(name="planner", system_tone="", allowed_tools=frozenset({"mcp__forge__*", "look"}))
    check_recipe(WorkflowTemplate(name="r", version=1, required_tools=["look", "mcp__forge__issues"]), who)
    with pytest.raises(RecipeInvalid) as caught:
        check_recipe(WorkflowTemplate(name="r", version=1, required_tools=["mcp__mail__send"]), who)
    assert caught.value.details["missing"] == ["mcp__mail__send"]
