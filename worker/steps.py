"""Runs one step of a claimed plan, and says how the plan goes on (CAP-053, CAP-060, CAP-061, CAP-066)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, cast

from django.db import InterfaceError, OperationalError
from django.db.models import F

from events.types import EventName
from factory.executors import in_workspace
from llm.errors import LLMCancelled, LLMError, RateLimitError
from llm.ports import CancelToken
from llm.types import ToolCall
from loop.live import LiveRun
from loop.ports import StoredCall, Transcript
from loop.rounds import CallRound
from plan import hot, services
from plan.briefing import earlier_results, plan_context, step_message
from plan.creation import filled_in, references
from plan.errors import ReferenceMissing
from plan.models import ExecutionPlan, PlanStep, StepKind, StepMessage, StepStatus
from plan.services import Settled
from plan.types import CONTEXT
from prompt.models import WorkflowTemplate
from prompt.types import AgentIdentity, Mode, Tier
from prompt.validate import check_recipe, validate
from tools import quick
from tools.errors import LeaseLost
from tools.executor import ToolExecutor
from tools.queries import seconds_used
from tools.runs import RunRef, RunStatus
from tools.units import Arrow, Unit, in_unit, release_connection
from worker.errors import OwnerGone, SliceOver
from worker.transcript import DataStep, StepTranscript
from worker.wakes import wake_soon
from workspaces.errors import CapstanError

logger = logging.getLogger(__name__)

MAX_WAITS = 8
FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 300.0  # of our own back-off; a provider may ask for more
LONGEST_ASKED_S = 86_400.0
THINKING_TOKENS = 2_000  # of a planning step
LEAST_S = 0.001  # of a step whose time is over: it is asked for its final answer at once
OVERTIME_S = 60.0  # beyond a step's own limit: its forced final answer, and the unit


class Agents(Protocol):
    """Makes the agent that runs a step; `factory.agents.create_agent`, or that bound to a scripted model."""

    def __call__(self, identity: str, *, mode: Mode = ..., tier: Tier | None = ...) -> Any: ...


@dataclass(slots=True, kw_only=True)
class StepRunner:
    """Runs steps of one claimed plan.

    Args:
        cancel: ends the model calls of the plan.
        extend: gives the plan's owner so many seconds from now.
        leaving: whether the owner wants to leave between two rounds.
        slots: how many steps may run at once from now on, those that run included; 0 when the owner is leaving.
    """

    plan: ExecutionPlan
    run_ref: RunRef
    agents: Agents
    clock: Callable[[], datetime]
    cancel: CancelToken
    extend: Callable[[float], None]
    leaving: Callable[[], bool]
    slots: Callable[[], int]
    _made: dict[Tier, Any] = field(default_factory=dict)
    _tools: ToolExecutor | None = None
    _seen: dict[int, quick.MayRead] = field(default_factory=dict)  # by step, until it begins a moment later
    _left: dict[str, Any] = field(default_factory=dict)  # what data steps left here, by key

    def take_over(self, *, slots: int) -> Settled:
        """Begin after a claim: steps that a lost owner left running are pending again, ready ones start."""
        if self.run_ref.fence == 1 and slots and not self._bounded():
            moved = hot.start_first(self.run_ref, revision=self.plan.revision, user_id=self.plan.owner_id)
            if moved is not None and moved.next_step is not None:
                wake_soon(self.plan.stream_id)
                return self._moved_on(moved)

        def change(_unit: Unit) -> None:
            PlanStep.objects.hand_back(self.plan.pk)
            PlanStep.objects.retry_due(self.plan.pk)

        return self._settle(change, slots=slots, progress=False)

    def something_new(self) -> bool:
        """Whether a step became ready, or its wait ended, while others run. Asked of the database alone."""
        if PlanStep.objects.running(self.plan.pk) >= self.slots():
            return False
        return PlanStep.objects.has_due(self.plan.pk) or bool(PlanStep.objects.next_ready(self.plan.pk))

    def look_again(self) -> Settled:
        """Start what became ready meanwhile."""
        return self._settle(lambda _unit: PlanStep.objects.retry_due(self.plan.pk), progress=False)

    def is_quick(self, step: PlanStep) -> bool:
        """Whether the step calls no model and so needs no thread of its own."""
        return step.kind == StepKind.DATA

    def run(self, step: PlanStep) -> Settled:
        """Run a started step to its end, to a wait, or to where the owner leaves it.

        Raises:
            LeaseLost: the plan has another owner now, or has ended.
            OperationalError, InterfaceError: the database went away; recovery goes on from the rows.
        """
        try:
            return self._run_data(step) if step.kind == StepKind.DATA else self._run_llm(step)
        except SliceOver:
            return self._hand_back(step)
        except OwnerGone:  # settling asks the same, and ends the plan
            return self._settle(lambda _unit: PlanStep.objects.hand_back_one(step.pk))
        except LLMCancelled as exc:
            return self._cancelled(step, exc)
        except LLMError as exc:
            return self._wait(step, exc) if exc.retryable and not exc.final else self._fail(step, str(exc))
        except (LeaseLost, OperationalError, InterfaceError):
            raise
        except CapstanError as exc:
            return self._fail(step, str(exc))
        except Exception as exc:
            logger.exception("step %s of plan %s", step.key, self.plan.pk)
            return self._fail(step, f"unforeseen: {type(exc).__name__}; the log of {self.plan.correlation_id} has more")

    def _run_llm(self, step: PlanStep) -> Settled:
        tier: Tier = step.tier or ("planning" if step.kind == StepKind.PLANNING else "execution")  # type: ignore[assignment]  # checked when the plan was made
        agent = self._agent(tier)
        resumed = StepMessage.objects.filter(step=step).exists()
        recipe = self._recipe(step, agent.identity)
        if not resumed:
            self._brief(step, recipe)
        seconds = agent.identity.limits.step_seconds
        if resumed:  # what earlier owners took is gone
            seconds = max(seconds - seconds_used("step", step.pk), LEAST_S)
        self.extend(seconds + OVERTIME_S)
        transcript = StepTranscript(
            run=self.run_ref,
            plan=self.plan,
            step=step,
            identity=agent.identity,
            leaving=self.leaving,
            slots=self.slots,
        )
        live = LiveRun(
            self.plan.stream_id,
            run=f"step:{step.pk}",
            fence=self.run_ref.fence,
            resumed=resumed,
            board=agent.identity.blackboard,
        )
        release_connection()
        try:
            agent.run_step(
                transcript=transcript,
                system_context=plan_context(self.plan),
                recipe=recipe,
                cancel=self.cancel,
                on_event=live,
                deadline_s=seconds,
                thinking_tokens=THINKING_TOKENS if step.kind == StepKind.PLANNING else 0,
            )
        finally:
            live.close()
        if transcript.settled is None:
            raise RuntimeError("the loop ended without finishing or parking its step")
        return transcript.settled

    def _run_data(self, step: PlanStep) -> Settled:
        agent = self._agent("execution")
        self.extend(agent.identity.limits.step_seconds + OVERTIME_S)
        settled = self._run_quick(step)
        if settled is not None:
            return settled
        rows = DataStep(run=self.run_ref, plan=self.plan, step=step, identity=agent.identity, slots=self.slots)
        call = ToolCall(id=f"step_{step.pk}", name=step.tool_name, arguments=self._arguments(step))
        journal = cast("Transcript", rows)  # of which a round without a reply asks only what `DataStep` has
        rounds = CallRound(journal, self._executor(agent), agent.identity.limits, 1, (), None)
        rounds.run([StoredCall(call=call, position=1, envelope=None)], reply=None)
        if rows.settled is None:
            raise RuntimeError("the call ended without a result or a park")
        return rows.settled

    def _run_quick(self, step: PlanStep) -> Settled | None:
        """A small read: its end and the next step's start are one statement. None: it takes the long way."""
        if self._bounded() or not self.slots():
            return None
        agent = self._agent("execution")
        self.extend(agent.identity.limits.step_seconds + OVERTIME_S)
        rows = DataStep(run=self.run_ref, plan=self.plan, step=step, identity=agent.identity, slots=self.slots)
        context = rows.tool_context(round=1, position=1)
        call = ToolCall(id=f"step_{step.pk}", name=step.tool_name, arguments=self._arguments(step))
        seen = self._seen.pop(step.pk, None)
        checked = quick.check_read(self._executor(agent), call, context, may_read=seen)
        if checked is None:
            return None
        outcome = quick.run_read(checked, context)
        if not outcome.envelope["success"]:
            return None  # a failed read is asked once more, and its failure is told the long way
        ledger = quick.ledger_of(checked, context, outcome)
        if ledger is None:
            return None
        moved = hot.end_data_step(self.run_ref, step=step, revision=self.plan.revision, ledger=ledger)
        if moved is None:
            self.plan.revision = ExecutionPlan.objects.values_list("revision", flat=True).get(pk=self.plan.pk)
            return None
        self._left[step.key] = outcome.envelope["result"]
        wake_soon(self.plan.stream_id)
        if moved.plan_ended:
            return Settled(Arrow(RunStatus.COMPLETED))
        return self._moved_on(moved)

    def _moved_on(self, moved: hot.Moved) -> Settled:
        """Go on with the step that was started; look again where others could start beside it, or none did."""
        if moved.next_step is None:
            return self._settle(lambda _unit: None)
        if self.is_quick(moved.next_step):
            self._seen[moved.next_step.pk] = moved.may_read
        if not moved.more:
            return Settled(None, [moved.next_step])
        self._seen.clear()  # they run side by side, a while from now
        beside = self._settle(lambda _unit: None, progress=False)
        return Settled(beside.arrow, [moved.next_step, *beside.started])

    def _bounded(self) -> bool:
        """Whether the plan has limits of its own, which only settling looks at."""
        plan = self.plan
        return plan.deadline is not None or plan.budget_usd is not None or plan.budget_tokens is not None

    def _executor(self, agent: Any) -> ToolExecutor:
        """The agent's tools, those of the workspace's MCP servers among them."""
        if self._tools is None:
            self._tools = in_workspace(agent.executor, self.plan.workspace_id)
        return self._tools

    def _agent(self, tier: Tier) -> Any:
        if tier not in self._made:
            self._made[tier] = self.agents(self.plan.identity, mode="workflow", tier=tier)
        return self._made[tier]

    def _recipe(self, step: PlanStep, identity: AgentIdentity) -> WorkflowTemplate | None:
        """The recipe the step began with, checked before any model call (CAP-022, CAP-023)."""
        if not step.recipe:
            return None
        recipe = WorkflowTemplate.objects.resolve(step.recipe, step.recipe_version)
        check_recipe(recipe, identity)
        validate(recipe.validators, {"text": step.action})
        return recipe

    def _brief(self, step: PlanStep, recipe: WorkflowTemplate | None) -> None:
        """Store what the step's model is asked, once, so that a later owner asks the same."""

        def body(unit: Unit) -> None:
            unit.progress = False
            StepMessage.objects.create(
                step=step, round=0, position=0, role="user", text=step_message(step), dynamic=earlier_results(step)
            )
            if recipe is not None:
                unit.close_with(lambda: PlanStep.objects.pin_recipe(step.pk, recipe.version))

        in_unit(self.run_ref, body)

    def _hand_back(self, step: PlanStep) -> Settled:
        return self._settle(lambda _unit: PlanStep.objects.hand_back_one(step.pk), slots=0)

    def _cancelled(self, step: PlanStep, exc: LLMCancelled) -> Settled:
        if exc.reason == "cancel":
            return self._settle(lambda _unit: None)  # settling sees the request and ends the plan
        if exc.reason == "shutdown":
            return self._hand_back(step)
        if exc.reason == "deadline":
            return self._fail(step, "the step took longer than its limit allows")
        raise LeaseLost(run=self.plan.pk, fence=self.run_ref.fence) from exc

    def _wait(self, step: PlanStep, exc: LLMError) -> Settled:
        waits = PlanStep.objects.values_list("attempts", flat=True).get(pk=step.pk)
        if waits >= MAX_WAITS:
            return self._fail(step, f"still failing after {waits} waits: {exc}")
        own = min(FIRST_WAIT_S * 2.0**waits, LONGEST_WAIT_S)
        seconds = own if exc.retry_after_s is None else min(max(exc.retry_after_s, 0.0), LONGEST_ASKED_S)

        def change(unit: Unit) -> None:
            due = PlanStep.objects.wait_for_retry(step.pk, seconds=seconds, error=str(exc))
            if due is None:
                return
            step.status = StepStatus.WAITING_RETRY
            services.record_step(step, events=unit, error=exc.code, not_before=due.isoformat())
            if isinstance(exc, RateLimitError):
                ExecutionPlan.objects.filter(pk=self.plan.pk).update(rate_limit_waits=F("rate_limit_waits") + 1)
                unit.record(
                    EventName.RATE_LIMIT,
                    plan_id=self.plan.pk,
                    step=step.key,
                    retry_after_s=seconds,
                    not_before=due.isoformat(),
                )

        return self._settle(change)

    def _fail(self, step: PlanStep, error: str) -> Settled:
        return self._settle(lambda unit: services.fail_step(step=step, error=error, events=unit))

    def _settle(self, change: Callable[[Unit], object], *, slots: int | None = None, progress: bool = True) -> Settled:
        """One unit that only moves rows: `change`, then how the plan goes on."""
        settled = Settled()

        def body(unit: Unit) -> None:
            unit.progress = progress

            def closing() -> Arrow | None:
                nonlocal settled
                change(unit)
                wanted = self.slots() if slots is None else slots
                settled = services.settle(plan_id=self.plan.pk, events=unit, slots=wanted)
                return settled.arrow

            unit.close_with(closing)

        in_unit(self.run_ref, body)
        return settled

    def _arguments(self, step: PlanStep) -> dict[str, Any]:
        """A data step's arguments, with what earlier steps left filled in."""
        named = {reference.partition(".")[0] for reference in references(step.args_json)} - {CONTEXT}
        if not named and CONTEXT not in str(step.args_json):
            return dict(step.args_json)
        sources: dict[str, Any] = {key: self._left[key] for key in named if key in self._left}
        if missing := named - set(sources):
            rows = PlanStep.objects.of(self.plan.pk).filter(key__in=missing, order__lt=step.order)
            sources.update({row.key: row.result_json for row in rows})
        sources[CONTEXT] = self.plan.context_json
        try:
            filled: dict[str, Any] = filled_in(step.args_json, sources)
        except KeyError as exc:
            raise ReferenceMissing(step=step.key, reference=str(exc.args[0])) from None
        return filled
