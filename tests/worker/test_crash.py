"""Real workers die, and plans go on: CAP-064, and the deadlines of design § 6 with three times their room."""

from __future__ import annotations

import os
import signal

import pytest

from llm.testing import Gate, call, held, say
from observability.models import AgentInteraction
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import events_of, hold_plan, llm_step, statuses
from tests.support.waiting import wait_until
from tools.models import ToolExecution
from tools.ports import dispatcher

LEASE_S = 3
RECOVERED_S = 3 * (LEASE_S + LEASE_S / 6 + 2)

FAST = {"CAPSTAN_LEASE_SECONDS": str(LEASE_S)}


@pytest.fixture(autouse=True)
def _short_lease(settings):
    settings.CAPSTAN_LEASE_SECONDS = LEASE_S


def _status(plan: ExecutionPlan) -> str:
    plan.refresh_from_db()
    return plan.status


def test_cap_064_recovery_redispatches(processes, openai_loopback):
    """kill -9 in the middle of a plan: it goes on unattended, and no completed step or stored reply is repeated."""
    stuck = Gate()
    model = openai_loopback(
        say("One."),
        call("catalog_overview"),
        held(stuck, "never seen"),
        say("Two, after the overview."),
        say("Three."),
    )
    environment = {**FAST, **model.environment()}
    worker = processes.worker("turns,plans", environment=environment)
    plan = hold_plan(llm_step("one"), llm_step("two"), llm_step("three"))
    dispatcher().dispatch_after_commit(plan)
    model.wait_for_request(3)
    assert statuses(plan) == {"one": "completed", "two": "running", "three": "pending"}
    worker.kill()
    processes.worker("turns,plans,suspect", environment=environment, name="second")
    processes.worker("sweep", pool="solo", environment=environment)
    processes.beat(environment=environment)
    wait_until(lambda: _status(plan) == "completed", RECOVERED_S, what=f"recovery of {statuses(plan)}")
    stuck.open()
    assert [step.llm_synthesis for step in PlanStep.objects.of(plan.pk)] == [
        "One.",
        "Two, after the overview.",
        "Three.",
    ]
    assert ToolExecution.objects.filter(tool_name="catalog_overview").count() == 1
    assert len(model.script.requests) == 5  # the third was the one whose answer died with its worker
    assert [e["step"] for e in events_of(plan, "plan_step") if e["status"] == "completed"] == ["one", "two", "three"]
    assert AgentInteraction.objects.filter(plan_id=plan.pk).count() == 4


def test_sigterm_hands_the_plan_back_within_seconds(processes, openai_loopback):
    """A worker that is told to stop cancels its model calls and releases its leases: no lease has to run out."""
    gate = Gate()
    model = openai_loopback(say("One."), held(gate, "never seen"), say("Two."))
    plan = hold_plan(llm_step("one"), llm_step("two"))
    worker = processes.worker(environment=model.environment())
    dispatcher().dispatch_after_commit(plan)
    model.wait_for_request(2)
    assert worker.terminate(timeout=3 * 5) == 0, worker.output
    assert (_status(plan), plan.lease_until, plan.attempts) == ("pending", None, 0)
    assert statuses(plan) == {"one": "completed", "two": "pending"}
    gate.open()
    processes.worker(environment=model.environment(), name="second")
    assert processes.manage("recover_plans").wait(timeout=30) == 0
    wait_until(lambda: _status(plan) == "completed", 30, what="the second worker ends it")


def test_a_zombie_neither_commits_nor_goes_on(processes, openai_loopback):
    """SIGSTOP past the lease, then SIGCONT: what the old owner does afterwards is not there."""
    gate = Gate()
    model = openai_loopback(held(gate, "From the zombie."), say("From the new owner."))
    environment = {**FAST, **model.environment()}
    plan = hold_plan(llm_step("one"))
    zombie = processes.worker(environment=environment, name="zombie")
    dispatcher().dispatch_after_commit(plan)
    model.wait_for_request(1)
    os.kill(zombie.pid, signal.SIGSTOP)
    processes.worker(environment=environment, name="second")
    processes.worker("sweep", pool="solo", environment=environment)
    processes.beat(environment=environment)
    wait_until(lambda: _status(plan) == "completed", RECOVERED_S)
    gate.open()
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.wait_for_line(r"plan \d+ left: lost")
    assert [step.llm_synthesis for step in PlanStep.objects.of(plan.pk)] == ["From the new owner."]
    assert plan.fence == 2
