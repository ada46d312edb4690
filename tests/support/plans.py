"""Plans with steps, and agents on a scripted model, for tests of plans and workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from django.utils import timezone

from events.models import Event, Stream
from factory.agents import PlannerAgent, create_agent
from factory.identities import identity
from llm.ports import BaseLLM
from llm.testing import ScriptedLLM
from plan import services
from plan.models import ExecutionPlan, PlanStep
from plan.services import Recorded
from plan.types import StepSpec
from tests.support.runs import make_user, make_workspace
from tools.executor import ToolExecutor
from tools.registry import Registry
from worker import runner
from worker.runner import Left
from workspaces.models import User, Workspace


def llm_step(key: str, **more: Any) -> StepSpec:
    """An LLM step."""
    return StepSpec(key=key, action=f"Do {key}.", **more)


def data_step(key: str, tool: str, args: dict[str, Any] | None = None, **more: Any) -> StepSpec:
    """A data step."""
    return StepSpec(key=key, action=f"Call {tool}.", kind="data", tool_name=tool, args=args or {}, **more)


def hold_plan(
    *steps: StepSpec, owner: User | None = None, workspace: Workspace | None = None, **columns: Any
) -> ExecutionPlan:
    """A committed pending plan with these steps, never dispatched."""
    owner = owner or make_user()
    workspace = workspace or make_workspace(owner)
    plan = ExecutionPlan(
        workspace=workspace,
        stream=Stream.objects.create(workspace=workspace),
        correlation_id=columns.pop("correlation_id", "test"),
        status=ExecutionPlan.READY,
        owner=owner,
        identity="planner",
        goal="a goal",
        created_at=timezone.now(),
        **columns,
    )
    from plan.creation import resolved

    sink = Recorded()
    filled = resolved(
        goal=plan.goal, steps=steps, known_tools=None, context=plan.context_json, max_steps=services.MAX_TEMPLATE_STEPS
    )
    services.hold(plan, filled, events=sink)
    Stream.objects.append(plan.stream_id, sink.events, correlation_id=plan.correlation_id)
    return plan


def agents_on(llm: BaseLLM | None = None, *tools: Callable[..., Any], **limits: Any) -> Callable[..., PlannerAgent]:
    """What the runner makes agents with: the product's own root on `llm`, with these tools in place of the domain's."""

    def make(name: str, *, mode: Any = "workflow", tier: Any = None) -> PlannerAgent:
        who = replace(identity(name), limits=replace(identity(name).limits, **limits))
        agent = create_agent(who, llm=llm or ScriptedLLM(["no model is called here"]), mode=mode, tier=tier)
        if not tools:
            return agent
        registry = Registry(tools)
        who = replace(who, allowed_tools=registry.names())
        return replace(agent, identity=who, executor=ToolExecutor(registry, who, mode=mode))

    return make


def run_plan(plan: ExecutionPlan, agents: Callable[..., Any], **options: Any) -> Left:
    """Run a plan in this process; the plan is read afresh."""
    left = runner.execute_plan(plan_id=plan.pk, agents=agents, clock=timezone.now, **options)
    plan.refresh_from_db()
    return left


def statuses(plan: ExecutionPlan) -> dict[str, str]:
    """The steps' statuses by key."""
    return dict(PlanStep.objects.of(plan.pk).values_list("key", "status"))


def events_of(plan: ExecutionPlan, name: str = "") -> Sequence[dict[str, Any]]:
    """The plan's events in order, all or those of one name."""
    rows = Event.objects.filter(stream_id=plan.stream_id).order_by("seq")
    return [{"event": row.name, **row.payload} for row in rows if not name or row.name == name]
