"""What the model of a step is told: the plan's goal, its own task, and what the steps it reads have found (CAP-054)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from plan.models import ExecutionPlan, PlanStep, StepKind, StepStatus
from plan.outcomes import INSTRUCTION

CHAIN_CHARS = 24_000  # about 6,000 tokens
RESULT_CHARS = 4_000  # of one data step's result


def plan_context(plan: ExecutionPlan) -> str:
    """What is the same for every step of the plan, so that providers' prompt caches hit."""
    return f"You work on one step of a plan. The plan's goal: {plan.goal}"


def step_message(step: PlanStep) -> str:
    """What is asked of the step's model; stored as the step's first message."""
    parts = [f"Step {step.order}, {step.key}: {step.action}"]
    if step.kind != StepKind.DATA and step.tool_name:
        arguments = f" with {json.dumps(step.args_json, ensure_ascii=False, sort_keys=True)}" if step.args_json else ""
        parts.append(f"The tool {step.tool_name}{arguments} may help.")
    if step.kind == StepKind.ASSESSMENT:
        parts.append(INSTRUCTION)
    else:
        parts.append("End with a synthesis: what you found or did, in words the next steps can build on.")
    return "\n\n".join(parts)


def earlier_results(step: PlanStep, *, limit: int = CHAIN_CHARS) -> str:
    """What the steps that this one reads, and those that they read, have left, the nearest last; then the board.

    Args:
        limit: characters; the farthest steps are left out first, and the text says how many.

    Source: CAP-054.
    """
    steps = {row.key: row for row in PlanStep.objects.of(step.plan_id).filter(order__lt=step.order)}
    told: list[str] = []
    room = limit
    read = sorted(_read_by(step, steps), key=lambda row: row.order, reverse=True)
    for row in read:
        text = _told(row)
        if len(text) > room and told:
            break
        told.append(text[:room])
        room -= len(text)
    board = board_beside(step.plan_id)
    if not told:
        return board
    left_out = len(read) - len(told)
    note = [f"({left_out} earlier steps are left out for length.)"] if left_out else []
    return "\n\n".join(["Earlier steps:", *note, *reversed(told), *([board] if board else [])])


def board_beside(plan_id: int) -> str:
    """The plan's board as a step's model is told it; empty while there is none (CAP-073)."""
    board = ExecutionPlan.objects.filter(pk=plan_id).values_list("board", flat=True).first()
    return f"Your board: {json.dumps(board, ensure_ascii=False)}" if board else ""


def _read_by(step: PlanStep, steps: Mapping[str, PlanStep]) -> Sequence[PlanStep]:
    found: dict[str, PlanStep] = {}
    open_keys = list(step.reads)
    while open_keys:
        key = open_keys.pop()
        if key not in found and key in steps:
            found[key] = steps[key]
            open_keys.extend(steps[key].reads)
    return list(found.values())


def _told(row: PlanStep) -> str:
    head = f"[{row.key}] {row.action}"
    if row.status == StepStatus.FAILED:
        return f"{head}\nThis step failed: {row.error}"
    if row.status == StepStatus.SKIPPED:
        return f"{head}\nThis step was skipped."
    if row.llm_synthesis:
        return f"{head}\n{row.llm_synthesis}"
    result = json.dumps(row.result_json, ensure_ascii=False, sort_keys=True)
    return f"{head}\n{result[:RESULT_CHARS]}{'…' if len(result) > RESULT_CHARS else ''}"
