"""The tool that hands work over to a plan (CAP-044)."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from plan.errors import PlanInvalid
from plan.models import ExecutionPlan
from plan.services import create_plan as hold_plan
from plan.types import StepSpec
from tools.registry import tool
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


@tool(effect="write", permission="capstan_plan.add_executionplan", handoff=True, label="Make a plan")
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
        known_tools=context.identity.allowed_tools,
    )
    return PlanHandle(plan_id=plan.pk, steps=len(steps))
