"""Real workers and a sweep on hosts whose clocks differ by a minute and more (issue 6, fault 7)."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import timedelta

import pytest

from llm.errors import RateLimitError
from llm.testing import Gate, When, held, say, user_said
from plan.models import ExecutionPlan
from tests.support.plans import events_of, hold_plan, llm_step
from tests.support.skew import clock_shim, compiler, off_by
from tests.support.waiting import wait_until
from tools.runs import database_now

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(300),
    pytest.mark.skipif(compiler() is None, reason="a wrong clock takes a C compiler"),
]

LEASE_S = 3
RECOVERED_S = LEASE_S + LEASE_S / 6 + 2
ASKED_S = 8  # of a provider; more than is waited for within a step


def status_of(plan: ExecutionPlan) -> str:
    plan.refresh_from_db()
    return plan.status


HOSTS = {"behind": (-60, 60, -60), "ahead": (60, -60, 60), "right": (0, 60, -60)}  # of workers, sweep and beat


def test_the_shim_turns_the_clock(tmp_path):
    told = subprocess.check_output(["date", "+%s"], env={**os.environ, **off_by(clock_shim(tmp_path), 3600)})
    assert int(told) - time.time() == pytest.approx(3600, abs=10)


@pytest.mark.parametrize(("of_workers", "of_sweep", "of_beat"), HOSTS.values(), ids=HOSTS)
def test_clocks_that_differ_steal_no_lease_and_leave_none(
    processes, openai_loopback, settings, tmp_path, of_workers, of_sweep, of_beat
):
    """A long step keeps its owner, a killed owner's plan goes on, and a 429 is waited out, all as by right clocks."""
    settings.CAPSTAN_LEASE_SECONDS = LEASE_S
    shim = clock_shim(tmp_path)
    stuck, long_step = Gate(), Gate()
    model = openai_loopback(
        When(user_said("Do long."), held(long_step, say("Long.")), times=1),
        When(user_said("Do dies."), held(stuck, say("nobody reads this")), times=1),
        When(user_said("Do dies."), say("Went on."), times=1),
        When(user_said("Do limited."), RateLimitError(retry_after_s=ASKED_S), times=1),
        When(user_said("Do limited."), say("Let in."), times=1),
    )
    fast = {**model.environment(), "CAPSTAN_LEASE_SECONDS": str(LEASE_S)}
    dying = hold_plan(llm_step("dies"))
    victim = processes.worker("plans", concurrency=1, environment={**fast, **off_by(shim, of_workers)}, name="victim")
    processes.worker("sweep", pool="solo", environment={**fast, **off_by(shim, of_sweep)})
    processes.beat(environment={**fast, **off_by(shim, of_beat)})
    model.wait_for_request(1, timeout=30)
    processes.worker("plans", environment={**fast, **off_by(shim, -of_workers)}, name="other")
    long_one = hold_plan(llm_step("long"))
    wait_until(lambda: status_of(long_one) == "running", 30)
    victim.kill()
    killed = time.monotonic()
    wait_until(lambda: status_of(dying) == "completed", 3 * RECOVERED_S)
    recovered_s = time.monotonic() - killed
    limited = hold_plan(llm_step("limited"))
    wait_until(lambda: status_of(limited) == "waiting_retry", 30)
    due = limited.not_before
    assert timedelta(0) < due - database_now() <= timedelta(seconds=2 * ASKED_S)
    wait_until(lambda: status_of(limited) == "completed", 3 * (2 * ASKED_S + RECOVERED_S))
    late_s = (limited.ended_at - due).total_seconds()
    assert late_s > 0, "it went on before its time"
    wait_until(lambda: time.monotonic() - killed > 3 * LEASE_S, 4 * LEASE_S)
    assert (status_of(long_one), long_one.fence) == ("running", 1)
    long_step.open()
    wait_until(lambda: status_of(long_one) == "completed", 20)
    stuck.open()
    assert (dying.fence, limited.fence, long_one.fence) == (2, 2, 1)
    assert len(model.script.requests) == 5
    for plan in (dying, long_one, limited):
        assert len(events_of(plan, "plan_completed")) == 1
    print(f"recovered in {recovered_s:.1f} s; went on {late_s:.1f} s after the time a provider asked for")  # noqa: T201
