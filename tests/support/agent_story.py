"""The run trace: a run's beats, read from the product's own rows and events (reference § 4.5 addendum).

| beat | row or event |
|---|---|
| entry | a `Turn`, or an `ExecutionPlan` without one |
| config | the identity and the model on that row and its interactions |
| tools_offered | the executor's schemas for identity and mode |
| tool_called, tool_result, tool_blocked | a `ToolExecution`, by status |
| domain_write, domain_read | a `ToolExecution` that succeeded, by effect |
| plan_created, plan_step, plan_failed | the events of those names |
| rate_limit | the event of that name |
| blackboard_set, blackboard_retain | the event `blackboard`, by status |
| exit, error | the run's terminal status |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chat.models import Turn
from events.models import Event
from factory.agents import create_agent
from observability.models import AgentInteraction
from plan.models import ExecutionPlan
from tools.models import ToolExecution
from tools.runs import RunStatus

EVENT_BEATS = {"plan_created", "plan_step", "plan_failed", "rate_limit"}


@dataclass(frozen=True, slots=True)
class Beat:
    """One record of a trace."""

    seq: int
    at: datetime
    correlation_id: str
    workflow: str
    mode: str
    beat: str
    name: str
    outcome: str = ""
    ids: dict[str, Any] = field(default_factory=dict)

    def says(self, wanted: str) -> bool:
        """Whether this record is `name`, or `name:outcome`."""
        return wanted in {self.name, f"{self.name}:{self.outcome}"}


def record_trace(correlation_id: str, *, workflow: str) -> list[Beat]:
    """Everything that one correlation id left behind, in time order."""
    found: list[Beat] = []

    def add(at: datetime, beat: str, name: str, outcome: str = "", mode: str = "", **ids: Any) -> None:
        found.append(Beat(0, at, correlation_id, workflow, mode, beat, name, outcome, ids))

    for turn in Turn.objects.filter(correlation_id=correlation_id):
        add(turn.created_at, "entry", "turn", mode="conversation", turn=turn.pk)
        add(turn.created_at, "config", turn.identity, mode="conversation", turn=turn.pk)
        for schema in create_agent(turn.identity, llm=_NoModel(), mode="conversation").executor.schemas():
            add(turn.created_at, "tools_offered", schema["name"], mode="conversation")
        _end(add, turn, "conversation", turn=turn.pk)
    for plan in ExecutionPlan.objects.filter(correlation_id=correlation_id):
        if plan.turn_id is None:
            add(plan.created_at, "entry", "plan", mode="workflow", plan=plan.pk)
        add(plan.created_at, "config", plan.identity, mode="workflow", plan=plan.pk)
        _end(add, plan, "workflow", plan=plan.pk)
    for call in AgentInteraction.objects.filter(correlation_id=correlation_id):
        add(call.created_at, "config", call.model, call.tier, owner=(call.owner_kind, call.owner_id))
    for execution in ToolExecution.objects.filter(correlation_id=correlation_id):
        _tool(add, execution)
    for event in Event.objects.filter(correlation_id=correlation_id, name__in=EVENT_BEATS):
        outcome = event.payload.get("status", "")
        name = str(event.payload.get("step") or event.payload.get("plan_id") or event.name)
        add(event.created_at, event.name, name, outcome, seq=event.seq)
    for event in Event.objects.filter(correlation_id=correlation_id, name="blackboard"):
        add(event.created_at, f"blackboard_{event.payload['status']}", "board", seq=event.seq)
    found.sort(key=lambda beat: beat.at)
    return [
        Beat(seq, b.at, b.correlation_id, b.workflow, b.mode, b.beat, b.name, b.outcome, b.ids)
        for seq, b in enumerate(found, start=1)
    ]


def _end(add: Any, run: Turn | ExecutionPlan, mode: str, **ids: Any) -> None:
    if not run.ended or run.ended_at is None:
        return
    beat = "exit" if run.status == RunStatus.COMPLETED else "error"
    add(run.ended_at, beat, run.KIND, run.status, mode=mode, **ids)


def _tool(add: Any, execution: ToolExecution) -> None:
    at, name, mode = execution.created_at, execution.tool_name, execution.mode
    ids = {"execution": execution.pk}
    if execution.status == "blocked":
        add(at, "tool_blocked", name, execution.error, mode=mode, **ids)
    else:
        add(at, "tool_called", name, mode=mode, **ids)
    succeeded = execution.status == "succeeded"
    add(at, "tool_result", name, f"success={str(succeeded).lower()}", mode=mode, **ids)
    if succeeded:
        add(at, "domain_read" if execution.effect == "read" else "domain_write", name, mode=mode, **ids)


class _NoModel:
    """Stands where no model is called: the story asks only which tools were offered."""

    model_id = provider = "none"


def assert_agent_story(trace: list[Beat], *, workflow: str, beats: dict[str, list[str]]) -> None:
    """Each name listed under a beat must be in the trace; an empty list asks only that the beat occurred.

    Raises:
        AssertionError: names the missing beat and shows what there is.
    """
    assert trace, f"{workflow}: the trace is empty"
    for beat, names in beats.items():
        records = [record for record in trace if record.beat == beat and record.workflow == workflow]
        told = sorted({f"{record.name}:{record.outcome}" if record.outcome else record.name for record in records})
        assert records, f"{workflow}: no beat {beat!r}; there are {sorted({record.beat for record in trace})}"
        for name in names:
            assert any(record.says(name) for record in records), f"{workflow}: beat {beat!r} lacks {name!r}; has {told}"
