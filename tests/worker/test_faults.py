"""What may go wrong outside: doubled and lost messages, an empty Redis, steps and signals that kill (CAP-063, -064)."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import replace

import psycopg
import pytest

from catalog.models import Element, ElementNote, Repository
from llm.testing import Gate, When, call, held, last_user_text, say, user_said
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import events_of, hold_plan, llm_step, statuses
from tests.support.processes import database_url
from tests.support.runs import make_user, make_workspace
from tests.support.waiting import wait_until
from tools.models import ToolExecution
from tools.runs import MAX_ATTEMPTS, SUSPECT_ATTEMPTS
from worker.dispatch import send
from workspaces.models import User, Workspace

LEASE_S = 3
RECOVERED_S = 3 * (LEASE_S + LEASE_S / 6 + 2)
KILLS, NOTES_A_STEP = 20, 6
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


def annotated(owner: User) -> Workspace:
    """A workspace with one element, on which plans leave notes."""
    workspace = make_workspace(owner)
    repository = Repository.objects.create(workspace=workspace, label="shop")
    Element.objects.create(workspace=workspace, repository=repository, key="module:shop", kind="module", name="shop")
    return workspace


def test_a_message_delivered_three_times_has_one_effect(processes, openai_loopback):
    """Three copies of each, out of order, and again after the end."""
    owner = make_user(is_superuser=True)
    workspace = annotated(owner)

    def answer(request):
        if request.messages[-1].role == "tool":
            return say("Noted.")
        return call("annotate_element", key="module:shop", note=re.search(r"plan-\d", last_user_text(request))[0])

    model = openai_loopback(When(lambda _request: True, answer, times=None))
    plans = [hold_plan(llm_step(f"plan-{n}"), owner=owner, workspace=workspace) for n in range(6)]
    copies = [plan.pk for plan in plans] * 3
    random.Random(7).shuffle(copies)
    for pk in copies:
        assert send("plan", pk)
    worker = processes.worker(environment={**FAST, **model.environment()})
    wait_until(lambda: completed(*plans), 30)
    for plan in plans:
        send("plan", plan.pk)
    wait_until(lambda: worker.output.count("Task worker.execute_plan") >= 2 * 4 * len(plans), 30)
    assert len(model.script.requests) == 2 * len(plans)
    assert sorted(ElementNote.objects.values_list("text", flat=True)) == [f"plan-{n}" for n in range(6)]
    for plan in plans:
        steps = [event["status"] for event in events_of(plan, "plan_step")]
        assert (steps, len(events_of(plan, "plan_completed"))) == (["running", "completed"], 1)
        plan.refresh_from_db()
        assert plan.fence == 1


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
    started: Counter[str] = Counter()
    while status_of(poison) != "failed":
        for queues, pool in (("plans", "threads"), ("suspect", "solo")):
            if not any(p.name.startswith(queues) and p.process.poll() is None for p in processes.running):
                started[queues] += 1
                processes.worker(queues, pool=pool, environment=environment)
        wait_until(
            lambda: status_of(poison) == "failed" or any(p.process.poll() is not None for p in processes.running), 60
        )
        processes.running[:] = [p for p in processes.running if p.process.poll() is None]
        assert started["plans"] <= 1 + SUSPECT_ATTEMPTS, "a plan under suspicion runs where no other one does"
    assert started["suspect"] <= 1 + MAX_ATTEMPTS - SUSPECT_ATTEMPTS
    assert "given up after 5 attempts" in poison.error
    assert events_of(poison)[-1]["event"] == "plan_failed"
    wait_until(lambda: completed(*good), 30)
    for plan in good:
        plan.refresh_from_db()
        assert (plan.attempts, plan.error) == (0, "")
    assert statuses(poison) == {"poison": "skipped"}


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_killed_worker_repeats_no_write(processes, openai_loopback):
    """kill -9 of the owner at 20 random moments of a plan of 10 steps that write: each row is there exactly once."""
    keys = [f"s{n}" for n in range(10)]
    owner = make_user(is_superuser=True)

    arrived: list[float] = []

    def answer(request):
        arrived.append(time.monotonic())
        key = next(k for k in keys if f", {k}:" in request.messages[0].content)
        done = sum(message.role == "tool" for message in request.messages)
        if done == NOTES_A_STEP:
            return say(f"Noted by {key}.", delay_s=0.08)
        return replace(call("annotate_element", key="module:shop", note=f"{key}, note {done}"), delay_s=0.08)

    model = openai_loopback(When(lambda _request: True, answer, times=None))
    plan = hold_plan(*[llm_step(key) for key in keys], owner=owner, workspace=annotated(owner))
    environment = {**FAST, **model.environment()}
    sweeping(processes, environment)
    moments, took = random.Random(11), []
    workers = [processes.worker("plans,suspect", environment=environment, name=f"life-{n}") for n in range(2)]
    send("plan", plan.pk)
    asked, killed_at = 0, time.monotonic()
    for number in range(KILLS):
        rounds = 1 if status_of(plan) != "running" or plan.attempts < 3 else 3  # five lives without one would end it
        wait_until(lambda seen=asked: len(arrived) > seen, RECOVERED_S, what=f"recovery {number}")
        took.append(arrived[asked] - killed_at)
        wait_until(lambda seen=asked, more=rounds: len(arrived) >= seen + more, RECOVERED_S)
        threading.Event().wait(moments.random() * 0.2)
        assert status_of(plan) == "running", f"the plan is {plan.status} before life {number} is over"
        victim = next(worker for worker in workers if worker.pid == int(plan.lease_owner.rpartition(":")[2]))
        victim.kill()
        asked, killed_at = len(arrived), time.monotonic()
        workers.remove(victim)
        workers.append(processes.worker("plans,suspect", environment=environment, name=f"life-{number + 2}"))
    wait_until(lambda: status_of(plan) in {"completed", "failed"}, 60)
    assert plan.status == "completed", plan.error
    wanted = sorted(f"{key}, note {n}" for key in keys for n in range(NOTES_A_STEP))
    assert sorted(ElementNote.objects.values_list("text", flat=True)) == wanted
    assert ToolExecution.objects.filter(plan_id=plan.pk, status="succeeded").count() == len(wanted)
    assert PlanStep.objects.filter(plan=plan, status="completed").count() == len(keys)
    recoveries = sorted(took[1:])
    assert recoveries[-1] < RECOVERED_S
    print(f"{len(took)} kills; recovered in {recoveries[len(recoveries) // 2]:.1f} s, at most {recoveries[-1]:.1f}")  # noqa: T201
