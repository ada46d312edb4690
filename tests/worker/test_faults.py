"""What may go wrong outside: doubled and lost messages, an empty Redis, steps and signals that kill (CAP-063, -064)."""

from __future__ import annotations

import os
import random
import signal
import threading

import psycopg
import pytest

from catalog.models import Element, ElementNote, Repository
from llm.testing import Gate, When, call, held, say, user_said
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import events_of, hold_plan, llm_step, statuses
from tests.support.processes import database_url
from tests.support.runs import make_user, make_workspace
from tests.support.waiting import wait_until
from tools.models import ToolExecution
from worker.dispatch import send

LEASE_S = 3
FAST = {"CAPSTAN_LEASE_SECONDS": str(LEASE_S)}


@pytest.fixture(autouse=True)
def _short_lease(settings):
    settings.CAPSTAN_LEASE_SECONDS = LEASE_S


def completed(*plans: ExecutionPlan) -> bool:
    return ExecutionPlan.objects.filter(pk__in=[plan.pk for plan in plans], status="completed").count() == len(plans)


def status_of(plan: ExecutionPlan) -> str:
    plan.refresh_from_db()
    return plan.status


def sweeping(processes, environment) -> None:
    processes.worker("sweep", pool="solo", environment=environment)
    processes.beat(environment=environment)


def test_a_message_delivered_three_times_has_one_effect(processes, openai_loopback):
    """Three copies of each, out of order, and again after the end."""
    model = openai_loopback(*[When(user_said(f"plan-{n}."), say(f"Done {n}."), times=1) for n in range(6)])
    plans = [hold_plan(llm_step(f"plan-{n}")) for n in range(6)]
    copies = [plan.pk for plan in plans] * 3
    random.Random(7).shuffle(copies)
    for pk in copies:
        assert send("plan", pk)
    worker = processes.worker(environment={**FAST, **model.environment()})
    wait_until(lambda: completed(*plans), 30)
    for plan in plans:
        send("plan", plan.pk)
    wait_until(lambda: worker.output.count("Task worker.execute_plan") >= 2 * 4 * len(plans), 30)
    assert len(model.script.requests) == len(plans)
    for plan in plans:
        steps = [event["status"] for event in events_of(plan, "plan_step")]
        assert (steps, len(events_of(plan, "plan_completed"))) == (["running", "completed"], 1)


def test_an_emptied_redis_loses_no_plan(processes, openai_loopback, redis):
    """FLUSHALL while one plan runs and another one's message lies in the queue."""
    gate = Gate()
    model = openai_loopback(
        When(user_said("first-a."), held(gate, "A."), times=1),
        When(user_said("first-b."), say("B."), times=1),
        When(user_said("second."), say("C."), times=1),
    )
    first, second = hold_plan(llm_step("first-a"), llm_step("first-b")), hold_plan(llm_step("second"))
    environment = {**FAST, **model.environment()}
    processes.worker(concurrency=1, environment=environment)
    send("plan", first.pk)
    model.wait_for_request(1)
    send("plan", second.pk)
    ExecutionPlan.objects.mark_dispatched(second.pk)
    redis.flushdb()
    gate.open()
    sweeping(processes, environment)
    wait_until(lambda: completed(first, second), 3 * (10 + LEASE_S), what="both plans complete")


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_step_that_kills_its_worker_is_given_up_and_harms_no_other(processes, openai_loopback):
    """Each time the model is asked for the poisoned step, whoever asked is killed; the plans beside it complete."""
    poisoned: list[int] = []

    def kill_whoever_asks(_request) -> str:
        with psycopg.connect(database_url()) as own:  # on the loopback server's event loop
            row = own.execute("SELECT lease_owner FROM capstan_plan_executionplan WHERE id = %s", poisoned).fetchone()
        os.kill(int(row[0].rpartition(":")[2]), signal.SIGKILL)
        return "nobody reads this"

    model = openai_loopback(
        When(user_said("poison."), kill_whoever_asks, times=None),
        When(user_said("good-"), say("Good."), times=None),
    )
    poison = hold_plan(llm_step("poison"))
    poisoned.append(poison.pk)
    good = [hold_plan(llm_step(f"good-{n}"), llm_step(f"good-{n}-more", reads=())) for n in range(2)]
    environment = {**FAST, **model.environment()}
    sweeping(processes, environment)
    deaths = 0
    while status_of(poison) != "failed":
        for queues, pool in (("plans", "threads"), ("suspect", "solo")):
            if not any(p.name.startswith(queues) and p.process.poll() is None for p in processes.running):
                deaths += 1
                processes.worker(queues, pool=pool, environment=environment)
        wait_until(
            lambda: status_of(poison) == "failed" or any(p.process.poll() is not None for p in processes.running), 60
        )
        processes.running[:] = [p for p in processes.running if p.process.poll() is None]
        assert deaths <= 2 + 5
    assert "given up after 5 attempts" in poison.error
    assert events_of(poison)[-1]["event"] == "plan_failed"
    wait_until(lambda: completed(*good), 30)
    assert statuses(poison) == {"poison": "skipped"}


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_killed_worker_repeats_no_write(processes, openai_loopback):
    """kill -9 at random moments of a plan that writes: each row is there exactly once."""
    keys = [f"s{n}" for n in range(10)]
    owner = make_user(is_superuser=True)
    workspace = make_workspace(owner)
    repository = Repository.objects.create(workspace=workspace, label="shop")
    Element.objects.create(workspace=workspace, repository=repository, key="module:shop", kind="module", name="shop")

    def answer(request):
        key = next(k for k in keys if f", {k}:" in request.messages[0].content)
        if request.messages[-1].role == "tool":
            return say(f"Noted by {key}.", delay_s=0.05)
        return call("annotate_element", key="module:shop", note=f"By {key}")

    model = openai_loopback(When(lambda _request: True, answer, times=None))
    plan = hold_plan(*[llm_step(key) for key in keys], owner=owner, workspace=workspace)
    environment = {**FAST, **model.environment()}
    sweeping(processes, environment)
    moments = random.Random(11)
    send("plan", plan.pk)
    for number in range(20):
        victim = processes.worker("plans,suspect", environment=environment, name=f"victim-{number}")
        asked = len(model.script.requests)
        wait_until(
            lambda seen=asked: len(model.script.requests) > seen or status_of(plan) in {"completed", "failed"}, 60
        )
        threading.Event().wait(moments.random() * 2)  # five lives in a row without one round would give the plan up
        victim.kill()
    processes.worker("plans,suspect", environment=environment, name="last")
    wait_until(lambda: status_of(plan) in {"completed", "failed"}, 60)
    assert plan.status == "completed", plan.error
    assert sorted(ElementNote.objects.values_list("text", flat=True)) == [f"By {key}" for key in keys]
    assert ToolExecution.objects.filter(plan_id=plan.pk, status="succeeded").count() == len(keys)
    assert PlanStep.objects.filter(plan=plan, status="completed").count() == len(keys)
