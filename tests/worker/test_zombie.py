"""A worker that freezes inside an open unit, locks and all: the server ends its session, and the plan goes on."""

from __future__ import annotations

import os
import signal

import pytest

from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import hold_plan, llm_step
from tests.support.waiting import wait_until
from tools.runs import ClockTimestamp

FROZEN = """
import os
import signal
from plan import services
from plan.models import ExecutionPlan, PlanStep
from tools.runs import RunRef
from tools.units import unit
plan = ExecutionPlan.objects.get()
run = RunRef.of(ExecutionPlan.objects.claim(plan.pk, owner="frozen"))
try:
    with unit(run) as opened:
        def closing():
            services.settle(plan_id=plan.pk, events=opened, slots=4)
            print("INSIDE", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        opened.close_with(closing)
except Exception as exc:
    print("REFUSED", type(exc).__name__, flush=True)
else:
    print("COMMITTED", flush=True)
"""


@pytest.mark.chaos
@pytest.mark.timeout(120)
def test_a_worker_frozen_inside_a_unit_holds_nobody_up(processes):
    """Its locks are those of stream and plan: a claim waits for them until the server ends the session."""
    plan = hold_plan(llm_step("a"))
    frozen = processes.start("frozen", ("manage.py", "shell", "-v", "0", "-c", FROZEN), {"CAPSTAN_LEASE_SECONDS": "3"})
    frozen.wait_for_line("INSIDE")
    wait_until(
        lambda: ExecutionPlan.objects.filter(pk=plan.pk, lease_until__lt=ClockTimestamp()).exists(), 3 * 3, what="lease"
    )
    claim = ExecutionPlan.objects.claim(plan.pk, owner="next")  # waits for the server's limit, ten seconds
    assert claim is not None
    assert claim.fence == 2
    assert PlanStep.objects.get(plan=plan).status == "pending"
    os.kill(frozen.pid, signal.SIGCONT)
    frozen.wait_for_line(r"REFUSED \w+Error")
    assert PlanStep.objects.get(plan=plan).status == "pending"
