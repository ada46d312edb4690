"""The tool that hands work over to a plan (CAP-044)."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from plan import adapting
from plan.errors import NotAdaptable, PlanInvalid
from plan.models import ExecutionPlan, PlanStep, StepKind
from plan.queries import visible_plan
from plan.services import create_plan as hold_plan
from plan.types import StepChange, StepSpec
from tools.exposure import exposed
from tools.registry import tool
from tools.toolset import tools_of
from tools.types import ToolContext


class PlanStepInput(TypedDict):
    """One step of the plan.

    Attributes:
        key: short name, unique in the plan: letters, digits, `_` or `-`.
        action: what this step has to find out or do, in words.
        is_critical: whether the plan has failed when this step fails; it has unless you say false.
        reads: keys of earlier steps whose results this step needs; leave it out for the step before, [] for none.
        recipe: name of a recipe that guides the step.
        tool_name: the tool that will probably help.
        args: arguments for that tool.
    """

    key: str
    action: str
    is_critical: NotRequired[bool]
    reads: NotRequired[list[str]]
    recipe: NotRequired[str]
    tool_name: NotRequired[str]
    args: NotRequired[dict[str, Any]]


class PlanHandle(TypedDict):
    plan_id: int
    steps: int


@tool(effect="write", permission="capstan_plan.add_executionplan", handoff=True, domain=False, label="Make a plan")
def create_plan(context: ToolContext, goal: str, steps: list[PlanStepInput]) -> PlanHandle:
    """Hand work that takes several steps over to a durable plan; workers finish it in the background.

    Use it when the request needs more than a quick answer. It ends this turn: call it last, and once.

    Args:
        goal: what the plan is to achieve.
        steps: 1 to 50 steps, in order. Each is done by a model with tools, and ends with a synthesis for the next ones.
    """
    if context.events is None or context.stream_id is None:
        raise PlanInvalid(problems=["a plan is made in the course of a conversation"])
    if context.turn_id is not None and ExecutionPlan.objects.filter(turn_id=context.turn_id).exists():
        raise PlanInvalid(problems=["this turn has made a plan already"])
    plan = hold_plan(
        goal=goal,
        steps=[
            StepSpec(
                key=step["key"],
                action=step["action"],
                recipe=step.get("recipe", ""),
                tool_name=step.get("tool_name", ""),
                args=step.get("args", {}),
                reads=tuple(step["reads"]) if "reads" in step else None,
                is_critical=step.get("is_critical", True),
            )
            for step in steps
        ],
        owner=context.user,
        workspace=context.workspace,
        identity=context.identity.name,
        conversation_id=context.conversation_id,
        turn_id=context.turn_id,
        stream_id=context.stream_id,
        correlation_id=context.correlation_id,
        events=context.events,
        now=context.now,
        known_tools=_usable(context),
    )
    return PlanHandle(plan_id=plan.pk, steps=len(steps))


def _usable(context: ToolContext) -> frozenset[str]:
    """What a step of this agent may call: its tool set may name tools by patterns, such as those of MCP servers."""
    offered = exposed(tools_of(context.workspace), context.identity, mode="workflow")
    return offered | context.identity.allowed_tools


class PlanStepChange(TypedDict):
    """One change of steps that have not begun.

    Attributes:
        op: what to do.
        key: the step to insert, remove or update.
        after: insert: the step it comes behind; leave it out for the front.
        action: insert, update: what the step has to find out or do.
        reads: insert, update: keys of earlier steps whose results it needs.
        is_critical: insert, update: whether the plan fails with it.
        keys: reorder: every pending step, in the new order.
    """

    op: Literal["insert", "remove", "update", "reorder"]
    key: NotRequired[str]
    after: NotRequired[str]
    action: NotRequired[str]
    reads: NotRequired[list[str]]
    is_critical: NotRequired[bool]
    keys: NotRequired[list[str]]


class PlanShape(TypedDict):
    plan_id: int
    steps: list[str]


@tool(effect="write", permission="capstan_plan.adapt_executionplan", domain=False, label="Change a plan")
def adapt_plan(context: ToolContext, changes: list[PlanStepChange], plan_id: int | None = None) -> PlanShape:
    """Insert, remove, update or reorder steps of a running plan that have not begun; all of the changes, or none.

    Args:
        changes: applied in order.
        plan_id: which plan; a planning step leaves it out and changes its own.
    """
    if context.step_id is not None:
        kind = PlanStep.objects.values_list("kind", flat=True).get(pk=context.step_id)
        if kind != StepKind.PLANNING or plan_id not in {None, context.plan_id}:
            raise NotAdaptable(reason="only a planning step changes a plan, and only its own")
        plan_id = context.plan_id
    if plan_id is None:
        raise PlanInvalid(problems=["plan_id: say which plan"])
    plan = visible_plan(context.user, plan_id)
    if plan.workspace_id != context.workspace.pk:
        raise NotAdaptable(reason="the plan belongs to another workspace")
    adapting.adapt_plan(
        plan_id=plan.pk,
        changes=[
            StepChange(
                op=one["op"],
                key=one.get("key", ""),
                after=one.get("after"),
                fields={name: one[name] for name in ("action", "reads", "is_critical") if name in one},
                keys=tuple(one.get("keys", ())),
            )
            for one in changes
        ],
        by=context.user,
        by_step=context.step_id,
        known_tools=None,
    )
    return PlanShape(plan_id=plan.pk, steps=list(PlanStep.objects.of(plan.pk).values_list("key", flat=True)))
