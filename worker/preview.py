"""Exactly what the model gets for an LLM step, layer by layer, without asking it (CAP-020)."""

from __future__ import annotations

from django.db.models import Max

from factory.agents import create_agent
from factory.executors import in_workspace
from factory.unasked import Unasked
from llm.types import LLMMessage
from loop.history import PastTurn, build_history
from loop.preview import NO_REQUEST, Part, parts_of
from observability.queries import last_round_asked
from plan.briefing import earlier_results, plan_context, step_message
from plan.models import STEP_TERMINAL, PlanStep, StepMessage
from prompt.models import WorkflowTemplate


def preview_of(step: PlanStep) -> list[Part]:
    """The step's request: tools, layers 1 to 3 with the plan's goal, what it is asked, and its rounds.

    Of a step that has ended, the last request it made, whatever came of that; else the one that its next model call
    would make now. A step that another try of its plan had ended made none itself: there it is that other step's.

    Raises:
        CapstanError: the plan's agent or the step's recipe is gone.
    """
    rows = StepMessage.objects.filter(step=step)
    if step.status in STEP_TERMINAL:
        replied = rows.filter(role="assistant").aggregate(last=Max("round"))["last"]
        asked = last_round_asked("step", step.pk) or replied
        if asked is None:
            return [NO_REQUEST]
        rows = rows.filter(round__lt=asked)
    said = tuple(row.as_message() for row in rows.order_by("round", "position"))
    agent = create_agent(step.plan.identity, llm=Unasked(step.model_used), mode="workflow")
    recipe = WorkflowTemplate.objects.resolve(step.recipe, step.recipe_version) if step.recipe else None
    return parts_of(
        tools=in_workspace(agent.executor, step.plan.workspace_id).schemas(),
        system=agent.step_system(recipe, plan_context(step.plan)),
        messages=build_history([PastTurn(step.pk, said or (_asked(step),))]),
    )


def _asked(step: PlanStep) -> LLMMessage:
    """What a step that has not begun would be asked, with what the steps it reads have left by now."""
    return StepMessage(role="user", text=step_message(step), dynamic=earlier_results(step)).as_message()
