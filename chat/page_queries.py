"""What the pages show, read in a few queries and made ready to be drawn.

A page reads the stream's last id before the rows: what happens meanwhile comes again as an event, and drawing an event
twice changes nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from chat.models import Conversation, Message, Turn
from chat.page_branches import BranchView, branch_views
from chat.queries import branch_of, messages_of
from events.models import Stream
from plan.models import STEP_TERMINAL, ExecutionPlan, PlanStep, StepStatus
from plan.services import result_text
from streaming.markdown import render_markdown
from streaming.wire import event_id_of
from tools.approvals import DECIDE
from tools.models import Approval, ExecutionStatus, ToolExecution
from tools.registry import label_of
from tools.runs import TERMINAL, RunStatus
from workspaces.models import User
from workspaces.permissions import may

SHOWN_TURNS = 100  # of a branch; older ones are behind a link
SHOWN_CHARACTERS = 20_000  # of a tool's arguments or result
TOOL_STATES = {
    ExecutionStatus.STARTED: "running",
    ExecutionStatus.SUCCEEDED: "done",
    ExecutionStatus.BLOCKED: "blocked",
    ExecutionStatus.FAILED: "failed",
    ExecutionStatus.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class ToolView:
    """One call, as a chip."""

    run: str
    round: int
    position: int
    tool: str
    label: str
    state: str
    duration_ms: int
    error: str


@dataclass(slots=True)
class RoundView:
    """One model call and the calls it made."""

    number: int
    html: str = ""
    partial: bool = False
    tools: list[ToolView] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepView:
    """A step with what came of it."""

    run: str
    key: str
    order: int
    action: str
    kind: str
    status: str
    html: str
    error: str
    started_at: datetime | None
    ended_at: datetime | None
    tools: Sequence[ToolView] = ()

    @property
    def took_ms(self) -> int | None:
        """Milliseconds from its first start to its end; None while it has not ended."""
        return _between_ms(self.started_at, self.ended_at)


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """A call that waits, or waited, for a person, with all of its stored arguments."""

    pk: int
    owner: str
    plan_id: int | None
    label: str
    tool: str
    summary: str
    question: str
    destructive: bool
    status: str
    arguments: str
    edited: str
    note: str
    decided_by: str
    expires_at: datetime
    may_decide: bool


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan as a card or a page."""

    pk: int
    turn_id: int | None
    goal: str
    status: str
    error: str
    html: str
    steps: Sequence[StepView]
    approvals: Sequence[ApprovalView]
    ended: bool
    conversation_id: UUID | None
    correlation_id: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    retry_of: int | None

    @property
    def done(self) -> int:
        """Steps that ran to their end; a skipped one did not run."""
        return sum(1 for step in self.steps if step.status in STEP_TERMINAL and step.status != StepStatus.SKIPPED)

    @property
    def skipped(self) -> int:
        """Steps that will not run."""
        return sum(1 for step in self.steps if step.status == StepStatus.SKIPPED)

    @property
    def took_ms(self) -> int | None:
        """Milliseconds from its first claim to its end; None while it has not ended."""
        return _between_ms(self.started_at, self.ended_at)


@dataclass(frozen=True, slots=True)
class TurnView:
    """A question and all that answers it."""

    pk: int
    question: str
    rounds: Sequence[RoundView]
    status: str
    ended: bool
    notice: str
    plans: Sequence[PlanView]
    approvals: Sequence[ApprovalView]
    created_at: datetime
    branches: BranchView


@dataclass(frozen=True, slots=True)
class TranscriptView:
    """A conversation as its page draws it; the stream goes on after `last_id`."""

    turns: Sequence[TurnView]
    last_id: str
    left_out: int


def transcript_view(conversation: Conversation, *, reader: User, everything: bool = False) -> TranscriptView:
    """The active branch as `reader` sees it, its last 100 turns unless `everything` is asked for."""
    last_id = last_event_id(conversation.pk)
    active = Conversation.objects.values_list("active_turn_id", flat=True).get(pk=conversation.pk)
    branch = branch_of(active)
    turns = branch if everything else branch[-SHOWN_TURNS:]
    questions, rounds = _rounds_of(turns)
    plans: dict[int | None, list[PlanView]] = defaultdict(list)
    for plan in plan_views(ExecutionPlan.objects.filter(turn_id__in=[turn.pk for turn in turns]), reader=reader):
        plans[plan.turn_id].append(plan)
    approvals: dict[str, list[ApprovalView]] = defaultdict(list)
    for approval in approval_views(
        Approval.objects.filter(conversation_id=conversation.pk, plan_id=None), reader=reader
    ):
        approvals[approval.owner].append(approval)
    branches = branch_views(turns)
    views = [
        TurnView(
            pk=turn.pk,
            question=questions.get(turn.pk, ""),
            rounds=rounds[turn.pk],
            status=turn.status,
            ended=turn.status in TERMINAL,
            notice=turn.notice,
            plans=plans[turn.pk],
            approvals=approvals[f"turn:{turn.pk}"],
            created_at=turn.created_at,
            branches=branches[turn.pk],
        )
        for turn in turns
    ]
    return TranscriptView(turns=views, last_id=last_id, left_out=len(branch) - len(turns))


def last_event_id(stream_id: UUID) -> str:
    """Where the stream stands now."""
    return event_id_of(stream_id, Stream.objects.values_list("last_seq", flat=True).get(pk=stream_id))


def plan_views(chosen: QuerySet[ExecutionPlan], *, reader: User, with_tools: bool = False) -> list[PlanView]:
    """Plans with their steps, the oldest first, in a few queries."""
    plans = list(chosen.order_by("pk"))
    steps: dict[int, list[PlanStep]] = defaultdict(list)
    for step in PlanStep.objects.filter(plan__in=plans).order_by("plan_id", "order"):
        steps[step.plan_id].append(step)
    tools: dict[str, list[ToolView]] = defaultdict(list)
    if with_tools:
        for tool in tool_views("step", [step.pk for own in steps.values() for step in own]):
            tools[tool.run].append(tool)
    approvals: dict[int | None, list[ApprovalView]] = defaultdict(list)
    for approval in approval_views(Approval.objects.filter(plan_id__in=[plan.pk for plan in plans]), reader=reader):
        approvals[approval.plan_id].append(approval)
    return [_plan_view(plan, steps[plan.pk], tools, approvals[plan.pk]) for plan in plans]


def _plan_view(
    plan: ExecutionPlan,
    steps: Sequence[PlanStep],
    tools: dict[str, list[ToolView]],
    approvals: Sequence[ApprovalView],
) -> PlanView:
    return PlanView(
        pk=plan.pk,
        turn_id=plan.turn_id,
        goal=plan.goal,
        status=plan.status,
        error=plan.error,
        html=render_markdown(_result_of(plan, steps)) if plan.status == RunStatus.COMPLETED else "",
        steps=[_step_view(step, tools.get(f"step:{step.pk}", ())) for step in steps],
        approvals=approvals,
        ended=plan.status in TERMINAL,
        conversation_id=plan.conversation_id,
        correlation_id=plan.correlation_id,
        created_at=plan.created_at,
        started_at=plan.started_at,
        ended_at=plan.ended_at,
        retry_of=plan.retry_of_id,
    )


def _result_of(plan: ExecutionPlan, steps: Sequence[PlanStep]) -> str:
    """What `plan_completed` said, from the steps at hand where they can tell."""
    said = [step.llm_synthesis for step in steps if step.status == StepStatus.COMPLETED and step.llm_synthesis]
    return said[-1] if said else result_text(plan.pk)


def _step_view(step: PlanStep, tools: Sequence[ToolView]) -> StepView:
    return StepView(
        run=f"step:{step.pk}",
        key=step.key,
        order=step.order,
        action=step.action,
        kind=step.kind,
        status=step.status,
        html=render_markdown(step.llm_synthesis) if step.llm_synthesis else "",
        error=step.error if step.status != StepStatus.COMPLETED else "",
        started_at=step.started_at,
        ended_at=step.ended_at,
        tools=tools,
    )


def tool_views(owner_kind: str, owner_ids: Sequence[int]) -> list[ToolView]:
    """The ledger's calls of these runs, in call order."""
    rows = ToolExecution.objects.filter(owner_kind=owner_kind, owner_id__in=owner_ids)
    return [_tool_view(row) for row in rows.order_by("owner_id", "round", "position")]


def _tool_view(row: ToolExecution) -> ToolView:
    return ToolView(
        run=f"{row.owner_kind}:{row.owner_id}",
        round=row.round,
        position=row.position,
        tool=row.tool_name,
        label=label_of(row.tool_name),
        state=TOOL_STATES[ExecutionStatus(row.status)],
        duration_ms=row.duration_ms,
        error=row.error,
    )


def _between_ms(start: datetime | None, end: datetime | None) -> int | None:
    return None if start is None or end is None else round((end - start).total_seconds() * 1_000)


def approval_views(chosen: QuerySet[Approval], *, reader: User) -> list[ApprovalView]:
    """Approvals as cards, the oldest first; whether `reader` may decide is asked once a workspace."""
    rows = list(chosen.select_related("decided_by").order_by("pk"))
    deciding = {key: may(reader, DECIDE, workspace=key) for key in {row.workspace_id for row in rows}}
    return [
        ApprovalView(
            pk=row.pk,
            owner=f"{row.owner_kind}:{row.owner_id}",
            plan_id=row.plan_id,
            label=label_of(row.tool_name),
            tool=row.tool_name,
            summary=row.summary,
            question=row.question,
            destructive=row.destructive,
            status=row.status,
            arguments=_json(row.arguments),
            edited="" if row.edited_arguments is None else _json(row.edited_arguments),
            note=row.note,
            decided_by="" if row.decided_by is None else row.decided_by.get_username(),
            expires_at=row.expires_at,
            may_decide=deciding[row.workspace_id],
        )
        for row in rows
    ]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def pretty(value: Any) -> str:
    """JSON for people, cut where it would drown the page."""
    text = value if isinstance(value, str) else _json(value)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}\n… cut here: {len(text):,} characters"


def _rounds_of(turns: Sequence[Turn]) -> tuple[dict[int, str], dict[int, list[RoundView]]]:
    """The question of each turn, and its rounds."""
    messages: dict[int, Message] = {}
    rounds: dict[int, dict[int, RoundView]] = {turn.pk: {} for turn in turns}
    for message in messages_of(turns):
        messages[message.pk] = message
        if message.role == "assistant" and message.turn_id in rounds:
            view = rounds[message.turn_id].setdefault(message.round, RoundView(message.round))
            view.html, view.partial = render_markdown(message.text) if message.text else "", message.partial
    for tool in tool_views("turn", [turn.pk for turn in turns]):
        turn_id = int(tool.run.partition(":")[2])
        rounds[turn_id].setdefault(tool.round, RoundView(tool.round)).tools.append(tool)
    questions = {
        turn.pk: messages[turn.question_id].text
        for turn in turns
        if turn.question_id is not None and turn.question_id in messages
    }
    return questions, {turn_id: [own[number] for number in sorted(own)] for turn_id, own in rounds.items()}
