"""What bounds a plan's worker: how many steps run at once, how long a unit may take, how long a step (design § 5)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection

from llm.errors import RateLimitError
from llm.testing import call
from observability.models import AgentInteraction
from plan import steering
from plan.models import ExecutionPlan, PlanStep
from streaming.signals import channel_of
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan, statuses
from tests.support.waiting import wait_until
from tools.models import ToolExecution
from tools.registry import Registry, tool
from tools.runs import ClockTimestamp
from tools.types import ToolContext
from worker.runner import LOOK_AGAIN_S, SIDE_BY_SIDE, Left
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()
never = threading.Event()


@tool(effect="read", registry=registry)
def quick_read(context: ToolContext) -> bool:
    """Look."""
    return True


@tool(effect="read", registry=registry)
def slow_read(context: ToolContext) -> dict[str, bool]:
    """Look for longer than a lease lasts."""
    return {"early": never.wait(1.5)}


class Room:
    """How many are in it, and the most that ever were."""

    def __init__(self) -> None:
        self.open, self._lock = threading.Event(), threading.Lock()
        self.now = self.most = 0

    def stay(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.open.wait(30)
        with self._lock:
            self.now -= 1


def test_a_slow_read_of_a_data_step_does_not_use_up_the_time_of_the_next_step(settings, scripted_llm):
    settings.CAPSTAN_LEASE_SECONDS = 1
    plan = hold_plan(data_step("look", "slow_read"), llm_step("say"))
    assert run_plan(plan, agents_on(scripted_llm("Said."), slow_read)) == Left.ENDED
    assert (plan.status, statuses(plan)) == ("completed", {"look": "completed", "say": "completed"}), plan.error


def test_no_more_steps_of_a_plan_run_at_once_than_the_limit_says():
    room = Room()
    held = Registry()

    @tool(effect="read", registry=held)
    def stay(context: ToolContext, n: int) -> dict[str, int]:
        """Stay until the door opens."""
        room.stay()
        return {"n": n}

    plan = hold_plan(*[data_step(f"s{n}", "stay", {"n": n}, reads=()) for n in range(3 * SIDE_BY_SIDE)])

    def work() -> None:
        try:
            run_plan(plan, agents_on(None, stay))
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        wait_until(lambda: room.now == SIDE_BY_SIDE)
        never.wait(2.5 * LOOK_AGAIN_S)  # it has looked again twice
        assert PlanStep.objects.running(plan.pk) == room.most == SIDE_BY_SIDE
    finally:
        room.open.set()
        worker.join(30)
    assert set(statuses(plan).values()) == {"completed"}
    assert room.most == SIDE_BY_SIDE


def test_readers_are_told_when_the_first_step_starts(redis):
    gate = threading.Event()
    held = Registry()

    @tool(effect="read", registry=held)
    def hold(context: ToolContext) -> bool:
        """Come back when told to."""
        return gate.wait(30)

    plan = hold_plan(data_step("a", "hold"))
    told = redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe(channel_of(plan.stream_id))
    told.get_message(timeout=5)

    def work() -> None:
        try:
            run_plan(plan, agents_on(None, hold))
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        wait_until(lambda: told.get_message(timeout=0.1), what="a wake-up while the step runs")
        assert statuses(plan) == {"a": "running"}
    finally:
        gate.set()
        worker.join(30)
        told.close()


def test_a_step_that_goes_on_has_only_the_time_that_is_left(scripted_llm):
    llm = scripted_llm(call("quick_read"), RateLimitError(retry_after_s=60), "In the end.")
    plan = hold_plan(llm_step("one"))
    agents = agents_on(llm, quick_read)
    assert run_plan(plan, agents) == Left.WAITING
    AgentInteraction.objects.filter(round=1).update(latency_ms=9 * 60_000)
    ToolExecution.objects.update(duration_ms=2 * 60_000)
    past = ClockTimestamp() - timedelta(seconds=1)
    ExecutionPlan.objects.update(not_before=past)
    PlanStep.objects.update(not_before=past)
    assert run_plan(plan, agents) == Left.ENDED
    step = PlanStep.objects.get()
    assert (step.status, step.stop_reason, step.llm_synthesis) == ("completed", "wall_clock", "In the end.")
    assert llm.requests[-1].tool_choice == "none"


def test_a_cancel_that_has_committed_undoes_the_round_that_comes_after_it(scripted_llm):
    held = Registry()

    @tool(effect="write", permission="capstan_workspaces.add_workspace", registry=held)
    def make(context: ToolContext, slug: str) -> str:
        """Make a workspace, while somebody cancels the plan."""
        Workspace.objects.create(slug=slug, name=slug)

        def cancel() -> None:
            try:
                assert not steering.cancel_plan(plan_id=context.plan_id or 0).ended
            finally:
                connection.close()

        person = threading.Thread(target=cancel)
        person.start()
        person.join(10)
        return slug

    plan = hold_plan(llm_step("one"), llm_step("two"))
    plan.owner.is_superuser = True
    plan.owner.save()
    assert run_plan(plan, agents_on(scripted_llm(call("make", slug="never")), make)) == Left.ENDED
    assert (plan.status, statuses(plan)) == ("cancelled", {"one": "skipped", "two": "skipped"})
    assert not Workspace.objects.filter(slug="never").exists()
    assert not ToolExecution.objects.exists()
    assert AgentInteraction.objects.get().committed is False
