"""The one statement of a data step does what a unit does, and gives way to every change from outside."""

from __future__ import annotations

import contextlib
import random
import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from plan import hot, steering
from plan.adapting import adapt_plan
from plan.errors import PlanConflict
from plan.models import ExecutionPlan, PlanStep
from plan.types import StepChange
from tests.support.plans import agents_on, data_step, events_of, hold_plan, llm_step, run_plan, statuses
from tests.support.runs import claim
from tools.models import ToolExecution
from tools.quick import QuickCall
from tools.registry import Registry, tool
from tools.types import ToolContext
from worker.runner import Left

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()


@tool(effect="read", registry=registry)
def echo(context: ToolContext, text: str) -> dict[str, str]:
    """Say it back."""
    return {"text": text}


@tool(effect="read", registry=registry)
def fail(context: ToolContext) -> None:
    """Fail."""
    raise ValueError("no")


def steps(count: int, *, prefix: str = "s"):
    return [data_step(f"{prefix}{n}", "echo", {"text": f"{prefix}{n}"}) for n in range(count)]


def shape(plan: ExecutionPlan) -> object:
    """Everything a plan left, keys and times aside."""
    ledger = ToolExecution.objects.filter(plan_id=plan.pk).order_by("pk")
    columns = (
        *("tool_name", "effect", "mode", "arguments", "arguments_digest", "status", "result", "error", "round"),
        *("position", "owner_kind", "cached", "scope_version", "workspace_id", "user_id", "correlation_id"),
    )
    events = [{k: v for k, v in e.items() if k not in {"run", "plan_id"}} for e in events_of(plan)]
    return (
        [(s.key, s.status, s.result_json, s.error, s.attempts) for s in PlanStep.objects.of(plan.pk)],
        list(ledger.values(*columns)),
        [event for event in events if event["event"] not in {"plan_created", "tool_start", "tool_end"}],
        (plan.status, plan.attempts, plan.lease_owner, plan.lease_until, plan.error),
    )


def test_the_short_way_leaves_what_the_long_way_leaves():
    short = hold_plan(*steps(4))
    run_plan(short, agents_on(None, echo))
    long = hold_plan(
        *steps(4), owner=short.owner, workspace=short.workspace, deadline=timezone.now() + timedelta(days=1)
    )
    run_plan(long, agents_on(None, echo))
    assert shape(short) == shape(long)


def test_a_data_step_costs_one_statement_whatever_the_plan_s_length():
    def statements(count: int) -> int:
        plan = hold_plan(*steps(count))
        with CaptureQueriesContext(connection) as captured:
            run_plan(plan, agents_on(None, echo))
        assert plan.status == "completed"
        return len(captured)

    assert statements(30) - statements(10) == 20


def test_a_failed_read_fails_its_step():
    plan = hold_plan(data_step("a", "echo", {"text": "x"}), data_step("b", "fail"), data_step("c", "echo"))
    run_plan(plan, agents_on(None, echo, fail))
    assert (plan.status, statuses(plan)) == ("failed", {"a": "completed", "b": "failed", "c": "skipped"})
    assert ToolExecution.objects.filter(plan_id=plan.pk, tool_name="fail").count() == 1


def test_a_lost_lease_writes_nothing():
    plan = hold_plan(*steps(2))
    run = claim(plan)
    moved = hot.start_first(run, revision=0, user_id=plan.owner_id)
    assert moved is not None
    assert moved.next_step is not None
    ExecutionPlan.objects.update(fence=run.fence + 1)
    before = shape(plan)
    ledger = QuickCall(
        user_id=plan.owner_id, conversation_id=None, tool_name="t", idempotency_key="k", arguments="{}",
        arguments_digest="d", result="{}", duration_ms=0, scope_version=0,
    )  # fmt: skip
    assert hot.end_data_step(run, step=moved.next_step, revision=0, ledger=ledger) is None
    assert shape(plan) == before


@pytest.mark.parametrize("column", ["revision", "cancel_requested_at"])
def test_a_change_from_outside_sends_the_owner_the_long_way(column):
    plan = hold_plan(*steps(2))
    run = claim(plan)
    value = 1 if column == "revision" else timezone.now()
    ExecutionPlan.objects.update(**{column: value})
    assert hot.start_first(run, revision=0, user_id=plan.owner_id) is None
    assert set(statuses(plan).values()) == {"pending"}


def test_quick_and_slow_steps_follow_one_another(scripted_llm):
    plan = hold_plan(data_step("a", "echo", {"text": "x"}), llm_step("b"), data_step("c", "echo", {"text": "y"}))
    run_plan(plan, agents_on(scripted_llm("Said."), echo))
    assert (plan.status, set(statuses(plan).values())) == ("completed", {"completed"})
    assert events_of(plan)[-1]["result"] == "Said."


@pytest.mark.parametrize("seed", range(8))
def test_an_adapt_or_a_cancel_racing_a_completion_leaves_a_whole_plan(seed):
    """Whoever comes first wins, and in the end every step has ended and none was called twice."""
    rnd = random.Random(seed)
    plan = hold_plan(*steps(12), template="a-template")
    agents = agents_on(None, echo)
    begun = threading.Barrier(3)

    def adapt() -> None:
        begun.wait()
        for number in range(3):
            threading.Event().wait(rnd.random() / 50)
            new = StepChange(
                op="insert", key=f"new{number}", after=None,
                fields={"action": "x", "kind": "data", "tool_name": "echo", "args": {"text": f"new{number}"}},
            )  # fmt: skip
            with contextlib.suppress(PlanConflict):
                adapt_plan(plan_id=plan.pk, changes=[new], by=plan.owner)
        connection.close()

    def cancel() -> None:
        begun.wait()
        threading.Event().wait(rnd.random() / 10)
        if seed % 2:
            steering.cancel_plan(plan_id=plan.pk)
        connection.close()

    others = [threading.Thread(target=work) for work in (adapt, cancel)]
    for thread in others:
        thread.start()
    begun.wait()
    left = run_plan(plan, agents)
    for thread in others:
        thread.join()
    plan.refresh_from_db()
    if left == Left.NOT_FREE:
        steering.cancel_orphan_plans()
        plan.refresh_from_db()
    assert plan.status in {"completed", "cancelled"}, (plan.status, statuses(plan))
    ends = set(statuses(plan).values())
    assert ends == {"completed"} if plan.status == "completed" else ends <= {"completed", "skipped"}
    done = PlanStep.objects.filter(plan=plan, status="completed").count()
    assert ToolExecution.objects.filter(plan_id=plan.pk).count() in {done, done + 1}  # one may have been cut off
    numbers = [event["event"] for event in events_of(plan)]
    assert sum(name in {"plan_completed", "plan_cancelled"} for name in numbers) == 1
