"""A decision, a change, a cancel, a retry, a sweep and the worker's own end, each with each other at one plan, at once.

Whoever is first: no plan waits for ever, nothing is run twice, and what was accepted is on record (issue 6, fault 5).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement

import pytest
from django.db import connection, transaction
from django.utils import timezone

from plan.adapting import adapt_plan
from tests.plan.races import inserted, look, play
from tests.support.plans import agents_on, data_step, hold_plan, statuses
from tests.support.waiting import wait_until
from tools.registry import Registry, tool
from worker import runner

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

HANDS = ("decide", "adapt", "cancel", "completion", "retry", "sweep")
PAIRS = list(combinations_with_replacement(HANDS, 2))
A_FEW, MANY = 2, 100


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_at_once_leave_a_plan_that_ends_and_ran_once(first, second):
    play(first, second, rounds=A_FEW, seed=5)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_at_once_many_times(first, second):
    stood = play(first, second, rounds=MANY, seed=11)
    print(f"{first} with {second}: {dict(stood)}")  # noqa: T201  # the closing figures


registry = Registry()
_reading, _go_on = threading.Event(), threading.Event()


@tool(effect="read", registry=registry)
def slow_look() -> str:
    """Look around, once the test says so."""
    _reading.set()
    assert _go_on.wait(20)
    return "seen"


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_a_step_that_is_added_while_the_last_one_s_end_waits_for_the_lock_is_run():
    """The worker's statement has read its rows by then; the plan's own row tells it that they are old."""
    plan = hold_plan(data_step("last", "slow_look"), template="race")
    agents = agents_on(None, slow_look, look)

    def work() -> None:
        try:
            runner.execute_plan(plan_id=plan.pk, agents=agents, clock=timezone.now)
        finally:
            connection.close()

    _reading.clear()
    _go_on.clear()
    with ThreadPoolExecutor(1) as worker:
        done = worker.submit(work)
        assert _reading.wait(20)
        with transaction.atomic():
            adapt_plan(
                plan_id=plan.pk, changes=[inserted("more", after="last", reads=(), tool_name="look")], by=plan.owner
            )
            _go_on.set()
            wait_until(somebody_waits_for_a_lock, 20)
        done.result(30)
    plan.refresh_from_db()
    assert (plan.status, statuses(plan)) == ("completed", {"last": "completed", "more": "completed"})
