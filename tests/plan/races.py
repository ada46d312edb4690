"""Two hands on one plan at the same moment: what each may do, and what holds whoever was first (issue 6, fault 5)."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from catalog.models import ElementNote, Repository
from events.models import Event
from plan import steering
from plan.adapting import adapt_plan
from plan.errors import PlanConflict
from plan.models import STEP_TERMINAL, ExecutionPlan, PlanChange, PlanStep
from plan.types import StepChange
from tests.support.plans import agents_on, data_step, hold_plan, run_plan
from tests.support.runs import make_user, make_workspace
from tools import services
from tools.errors import ApprovalConflict
from tools.models import Approval, ToolExecution
from tools.registry import Registry, tool
from tools.runs import TERMINAL
from tools.types import ToolContext
from worker import runner
from worker.recovery import sweep
from worker.runner import Left
from workspaces.models import User, Workspace

WRITE = "capstan_catalog.change_element"
ENDS = ("plan_completed", "plan_failed", "plan_cancelled")
LATEST_S = 0.02  # of the second hand, behind the first
RUNS_S = 0.25  # of another hand, behind a worker: a plan takes about so long
EVERYBODY_GONE = timedelta(days=8)  # what nobody decided has expired by then
registry = Registry()


@tool(effect="write", permission=WRITE, registry=registry)
def note(context: ToolContext, text: str) -> str:
    """Write a note; nothing refuses a second one. A fork has the stream of the plan that it continues."""
    repository = Repository.objects.get(workspace=context.workspace)
    ElementNote.objects.create(
        workspace=context.workspace, repository=repository, key=str(context.stream_id), text=text
    )
    return text


@tool(effect="write", permission=WRITE, approval="call", registry=registry)
def sign(context: ToolContext, text: str) -> str:
    """Write a note once a person agrees."""
    return note(context, text)


@tool(effect="read", registry=registry)
def look(context: ToolContext) -> int:
    """How many notes there are."""
    return ElementNote.objects.filter(key=str(context.stream_id)).count()


AGENTS = agents_on(None, note, sign, look)


@dataclass
class Stage:
    """The people of a test, and the plans that they race for."""

    rng: random.Random
    owner: User = field(default_factory=lambda: make_user(is_superuser=True))
    approvers: tuple[User, ...] = field(
        default_factory=lambda: (make_user(is_superuser=True), make_user(is_superuser=True))
    )
    workspace: Workspace = field(init=False)

    def __post_init__(self) -> None:
        self.workspace = make_workspace(self.owner, *self.approvers)
        Repository.objects.create(workspace=self.workspace, label="shop")

    def race(self, *, for_a_worker: bool) -> Race:
        """A plan that waits for two people; `for_a_worker`: for one, and a worker finds three steps to run."""
        asks = ("ask",) if for_a_worker else ("ask", "too")
        steps = [data_step(key, "sign", {"text": key}, reads=()) for key in asks]
        plan = hold_plan(
            *steps,
            data_step("tail", "note", {"text": "tail"}, reads=asks),
            owner=self.owner,
            workspace=self.workspace,
            template="race",
        )
        run_plan(plan, AGENTS)
        assert plan.status == "waiting_approval", plan.error
        race = Race(self, plan)
        if for_a_worker:
            race.adapt_with(
                inserted("one", after="tail", reads=()),
                inserted("see", after="one", tool_name="look"),
                inserted("two", after="see"),
            )
        return race


def inserted(key: str, *, after: str, reads: tuple[str, ...] | None = None, tool_name: str = "note") -> StepChange:
    """A new data step behind `after`, which it reads unless `reads` says otherwise."""
    args = {} if tool_name == "look" else {"text": key}
    read = [after] if reads is None else list(reads)
    fields = {"action": key, "kind": "data", "tool_name": tool_name, "args": args, "reads": read}
    return StepChange(op="insert", key=key, after=after, fields=fields)


@dataclass
class Race:
    """One plan, and what the two hands got done."""

    stage: Stage
    plan: ExecutionPlan
    adapted: int = 0  # changes that were accepted
    left: list[Left] = field(default_factory=list)  # how workers left it

    def adapt_with(self, *changes: StepChange) -> None:
        adapt_plan(plan_id=self.plan.pk, changes=changes, by=self.stage.owner)
        self.adapted += len(changes)

    # -- the hands; each refuses what came too late, and nothing else

    def decide(self, hand: int) -> None:
        """The first hand decides the first approval; the second one the second, or the same when there is one."""
        waits = list(Approval.objects.filter(plan_id=self.plan.pk).order_by("pk"))
        self._decide(waits[min(hand, len(waits) - 1)], hand, self.stage.rng.choice(("approve", "approve", "reject")))

    def adapt(self, hand: int) -> None:
        """One more step that may run at once."""
        with contextlib.suppress(PlanConflict):
            self.adapt_with(inserted(f"more-{hand}", after="tail", reads=()))

    def cancel(self, _hand: int) -> None:
        steering.cancel_plan(plan_id=self.plan.pk)

    def completion(self, _hand: int) -> None:
        """A worker that was told of the plan runs it to its end, or to where it waits."""
        self.left.append(runner.execute_plan(plan_id=self.plan.pk, agents=AGENTS, clock=timezone.now))

    def retry(self, _hand: int) -> None:
        """Somebody cancels the plan and starts it anew from there."""
        try:
            steering.cancel_plan(plan_id=self.plan.pk)
            steering.retry_plan(plan_id=self.plan.pk, by=self.stage.owner, now=timezone.now())
        except PlanConflict:
            pass

    def sweep(self, _hand: int) -> None:
        """A sweep to which every approval has expired."""
        sweep(now=timezone.now() + EVERYBODY_GONE)

    def approve_all(self) -> None:
        for approval in Approval.objects.pending().filter(plan_id__in=[plan.pk for plan in self.line()]):
            self._decide(approval, 0, "approve")

    def _decide(self, approval: Approval, hand: int, decision: services.Decision) -> None:
        with contextlib.suppress(ApprovalConflict):
            services.decide(
                approval_id=approval.pk,
                user=self.stage.approvers[hand],
                decision=decision,
                now=timezone.now(),
                tools=registry,
            )

    # -- what holds afterwards

    def line(self) -> list[ExecutionPlan]:
        """The plan and its forks."""
        return list(ExecutionPlan.objects.filter(stream_id=self.plan.stream_id).order_by("pk"))

    def check_standing(self) -> None:
        """Nobody runs now: each plan has ended, may be claimed, or waits for somebody who is asked."""
        assert Left.LOST not in self.left, "a worker that was alive lost its lease"
        idle = ExecutionPlan.objects.idle_with_work()
        for plan in self.line():
            assert plan.status in {*TERMINAL, "pending", "waiting_approval"}, f"{plan} and nobody runs it"
            assert plan.pk not in idle, f"{plan} though a step is ready, or none waits"
            if plan.status == "waiting_approval":
                assert Approval.objects.pending().filter(plan_id=plan.pk).exists(), f"{plan} and nobody is asked"
            elif plan.status in TERMINAL:
                assert not Approval.objects.pending().filter(plan_id=plan.pk).exists(), f"{plan}, but somebody is asked"

    def drive_home(self) -> None:
        """Without a sweep: workers and people who do what is asked of them bring every plan to its end."""
        for _ in range(6):
            standing = [plan for plan in self.line() if not plan.ended]
            if not standing:
                return
            for plan in standing:
                run_plan(plan, AGENTS)
            self.approve_all()
        assert not [plan for plan in self.line() if not plan.ended], f"{self.line()} do not end"

    def check_end(self) -> None:
        """Every effect at most once over the whole line, each decision kept, each change on record."""
        plans = self.line()
        notes = Counter(ElementNote.objects.filter(key=str(self.plan.stream_id)).values_list("text", flat=True))
        assert not [text for text, many in notes.items() if many > 1], notes
        steps = PlanStep.objects.filter(plan__in=plans)
        assert not steps.exclude(status__in=STEP_TERMINAL), "an ended plan with steps that have not ended"
        ledger = ToolExecution.objects.filter(owner_kind="step", owner_id__in=steps.values("pk"))
        writes = Counter(ledger.filter(status="succeeded", effect="write").values_list("arguments__text", flat=True))
        assert writes == notes, "the ledger does not say what was written"
        own = steps.filter(status="completed", tool_name__in=("note", "sign")).exclude(copied_from__status="completed")
        assert Counter(own.values_list("key", flat=True)) == notes, "steps do not say what was written"
        for approval in Approval.objects.filter(plan_id__in=[plan.pk for plan in plans]):
            ran = ledger.filter(owner_id=approval.owner_id, status="succeeded").count()
            assert ran == (approval.status == "executed"), f"{approval.status}, and it ran {ran} times"
        events = Event.objects.filter(stream_id=self.plan.stream_id)
        ends = Counter(events.filter(name__in=ENDS).values_list("payload__plan_id", flat=True))
        assert ends == Counter(plan.pk for plan in plans), "each plan says once that it has ended"
        decided = Counter(events.filter(name="approval_decided").values_list("payload__approval_id", flat=True))
        assert not [key for key, many in decided.items() if many > 1], "one decision an approval"
        assert PlanChange.objects.filter(plan=self.plan).count() == self.adapted, "what was accepted is on record"
        told = events.filter(name="plan_adapted").values_list("payload__changes", flat=True)
        assert sum(len(changes) for changes in told) == self.adapted
        if self.plan.status == "completed":
            assert set(notes) == set(steps.exclude(tool_name="look").values_list("key", flat=True))


def play(first: str, second: str, *, rounds: int, seed: int) -> Counter[str]:
    """Let two hands at one plan after another, both at once; how the plans stood when both were done."""
    stage = Stage(random.Random(seed))
    stood: Counter[str] = Counter()
    with ThreadPoolExecutor(2) as hands:
        for number in range(rounds):
            race = stage.race(for_a_worker="completion" in {first, second})
            latest = LATEST_S
            if "completion" in {first, second}:
                latest = RUNS_S
                if number % 2 and "decide" not in {first, second}:
                    race.approve_all()  # the worker comes to the plan's end, and not to a wait
            both = threading.Barrier(2, timeout=10)
            late = stage.rng.choice((0.0, stage.rng.random() * latest, stage.rng.random() * latest))
            early = 1 if second == "completion" else 0 if first == "completion" else number % 2
            ends = [
                hands.submit(_hand, getattr(race, name), place, both, 0.0 if place == early else late)
                for place, name in enumerate((first, second))
            ]
            for end in ends:
                end.result(60)
            race.plan.refresh_from_db()
            stood[race.plan.status] += 1
            race.check_standing()
            race.drive_home()
            race.plan.refresh_from_db()
            race.check_end()
    return stood


def _hand(act: Callable[[int], None], number: int, both: threading.Barrier, late_s: float) -> None:
    try:
        both.wait()
        threading.Event().wait(late_s)
        act(number)
    finally:
        connection.close()
