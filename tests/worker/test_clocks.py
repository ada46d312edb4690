"""Hosts whose clocks are wrong, and rows moved in time: the database's clock decides (issue 6, fault 7).

A host's clock is `django.utils.timezone.now`, which these tests turn; what time it is, PostgreSQL says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from celery import current_app
from django.conf import settings as live
from django.db import connection
from django.utils import timezone

from chat import idempotency
from chat.errors import IdempotencyInProgress
from chat.models import Turn
from llm.errors import RateLimitError
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan
from tests.support.processes import database_url
from tests.support.runs import claim, make_turn, make_user
from tests.support.waiting import wait_until
from tests.worker.test_approvals import found_workspace, waiting_plan
from tests.worker.test_runner import count_workspaces
from tools.models import Approval
from tools.runs import ClockTimestamp, LeasedRun, database_now
from worker import recovery, tasks
from worker.recovery import Pace
from worker.runner import Left

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

APART = [timedelta(minutes=1), timedelta(minutes=-1)]
Turned = Callable[[timedelta], None]


@pytest.fixture
def host_clock(monkeypatch: pytest.MonkeyPatch) -> Turned:
    """Turn this host's clock by so much."""

    def turn(by: timedelta) -> None:
        monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) + by)

    return turn


@pytest.fixture(autouse=True)
def _no_sweep_lately() -> None:
    recovery.pace = Pace()


def move(run: LeasedRun, **columns: timedelta) -> None:
    """Set times of a run's row, from the database's now."""
    values = {name: ClockTimestamp() + by for name, by in columns.items()}
    type(run)._default_manager.filter(pk=run.pk).update(**values)


@pytest.mark.parametrize("apart", APART, ids=["ahead", "behind"])
@pytest.mark.parametrize("make", [lambda: hold_plan(llm_step("a")), make_turn], ids=["plan", "turn"])
def test_a_live_lease_is_not_stolen_and_an_expired_one_not_left(host_clock, apart, make):
    run = make()
    rows = type(run).objects
    claim(run)
    host_clock(apart)
    tasks.sweep()
    assert rows.claim(run.pk, owner="other") is None
    run.refresh_from_db()
    assert (run.status, run.fence, run.dispatched_at) == ("running", 1, None)
    move(run, lease_until=-timedelta(milliseconds=1))
    assert [due.pk for due in rows.take_due()] == [run.pk]
    taken = rows.claim(run.pk, owner="other")
    assert taken is not None
    run.refresh_from_db()
    assert timedelta(0) < run.lease_until - database_now() <= timedelta(seconds=live.CAPSTAN_LEASE_SECONDS)


@pytest.mark.parametrize("apart", APART, ids=["ahead", "behind"])
def test_a_wait_ends_when_the_database_says_so(host_clock, scripted_llm, apart):
    plan = hold_plan(llm_step("a"))
    agents = agents_on(scripted_llm(RateLimitError(retry_after_s=50), "Done."))
    host_clock(apart)
    assert run_plan(plan, agents) == Left.WAITING
    assert timedelta(seconds=45) < plan.not_before - database_now() <= timedelta(seconds=50)
    tasks.sweep()
    assert run_plan(plan, agents) == Left.NOT_FREE
    move(plan, not_before=-timedelta(milliseconds=1))
    PlanStep.objects.filter(plan=plan).update(not_before=ClockTimestamp() - timedelta(milliseconds=1))
    assert recovery.recover_plans().sent == 1
    assert run_plan(plan, agents) == Left.ENDED


@pytest.mark.parametrize("apart", [timedelta(days=8), timedelta(days=-8)], ids=["ahead", "behind"])
def test_an_approval_expires_by_the_database(host_clock, apart):
    host_clock(apart)
    plan = waiting_plan(data_step("found", "found_workspace", {"slug": "never"}))
    run_plan(plan, agents_on(None, found_workspace))
    approval = Approval.objects.get()
    assert timedelta(days=6.9) < approval.expires_at - database_now() < timedelta(days=7)
    tasks.sweep()
    approval.refresh_from_db()
    assert approval.status == "pending"
    Approval.objects.update(expires_at=ClockTimestamp() - timedelta(milliseconds=1))
    recovery.pace = Pace()
    tasks.sweep()
    approval.refresh_from_db()
    assert approval.status == "expired"


def test_a_request_is_abandoned_by_the_database(host_clock):
    """A host that is ahead by the time after which a request counts as abandoned does not run it a second time."""
    request: dict[str, Any] = {"user": make_user(), "key": "k-1", "path": "POST /", "body": {}}
    host_clock(-idempotency.ABANDONED_AFTER)
    row = idempotency.begin(**request)
    host_clock(2 * idempotency.ABANDONED_AFTER)
    with pytest.raises(IdempotencyInProgress):
        idempotency.begin(**request)
    host_clock(-2 * idempotency.ABANDONED_AFTER)
    type(row).objects.update(created_at=ClockTimestamp() - idempotency.ABANDONED_AFTER - timedelta(seconds=1))
    assert idempotency.begin(**request).pk == row.pk
    with pytest.raises(IdempotencyInProgress):  # it began anew
        idempotency.begin(**request)


def test_a_sweep_is_run_that_a_host_sent_whose_clock_is_behind(processes):
    """Celery stamps a message's end of life with the sender's clock, and the worker compares it with its own."""
    plan = hold_plan(llm_step("a"))
    options = live.CELERY_BEAT_SCHEDULE["sweep"]["options"]
    processes.worker("sweep", pool="solo")
    expires = datetime.now(UTC) - timedelta(minutes=1) + timedelta(seconds=options["expires"])
    current_app.send_task("worker.sweep", **{**options, "expires": expires})
    wait_until(lambda: ExecutionPlan.objects.filter(pk=plan.pk, dispatches=1).exists(), 10, what="the sweep")


def test_a_pile_of_sweeps_is_one_sweep(settings):
    settings.CAPSTAN_LEASE_SECONDS = 60
    pace = Pace()
    assert [second for second in range(26) if pace.due(float(second))] == [0, 5, 10, 15, 20, 25]
    plans = [hold_plan(llm_step("a"))]
    tasks.sweep()
    plans.append(hold_plan(llm_step("a")))
    tasks.sweep()
    assert [ExecutionPlan.objects.get(pk=plan.pk).dispatches for plan in plans] == [1, 0]


# -- rows moved, and a server in a zone with summer time

FOLD = ("2026-10-25 02:30+02", "2026-10-25 02:30+01")  # the same words on a wall in Berlin, an hour apart
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture
def berlin() -> Iterator[None]:
    """The database's zone is one with summer time, for every session that does not say otherwise."""
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {connection.ops.quote_name(name)} SET timezone = 'Europe/Berlin'")
    connection.close()
    with psycopg.connect(database_url()) as own:
        assert own.execute("SHOW timezone").fetchone() == ("Europe/Berlin",)
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {connection.ops.quote_name(name)} RESET timezone")
    connection.close()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("at", FOLD)
@pytest.mark.parametrize(
    "make", [lambda: hold_plan(data_step("a", "count_workspaces")), make_turn], ids=["plan", "turn"]
)
def test_times_within_the_hour_that_comes_twice(make, at):
    """As a session in Berlin writes them: both are past, and the one is an hour before the other."""
    run = make()
    claim(run)
    with psycopg.connect(database_url()) as own:
        table = type(run)._meta.db_table
        own.execute(f"UPDATE {table} SET lease_until = %s, dispatched_at = %s, dispatches = 1", [at, at])
    run.refresh_from_db()
    assert run.lease_until == datetime.fromisoformat(at)
    assert [due.pk for due in type(run).objects.take_due()] == [run.pk]
    again = type(run).objects.claim(run.pk, owner="other")
    assert again is not None
    run.refresh_from_db()
    assert timedelta(0) < run.lease_until - database_now() <= timedelta(seconds=live.CAPSTAN_LEASE_SECONDS)


@pytest.mark.usefixtures("berlin")
def test_the_earlier_of_two_waits_is_the_earlier_in_both_hours(scripted_llm):
    plan = hold_plan(llm_step("a", reads=()), llm_step("b", reads=()))
    agents = agents_on(scripted_llm(*[RateLimitError(retry_after_s=3600)] * 2))
    run_plan(plan, agents)
    first, second = ("2027-03-28 01:30+01", "2027-03-28 03:30+02")  # wall clocks two hours apart; one hour apart
    with psycopg.connect(database_url()) as own:
        own.execute("UPDATE capstan_plan_planstep SET not_before = %s WHERE key = 'b'", [first])
        own.execute("UPDATE capstan_plan_planstep SET not_before = %s WHERE key = 'a'", [second])
    due = list(PlanStep.objects.order_by("not_before").values_list("key", "not_before"))
    assert [key for key, _ in due] == ["b", "a"]
    assert due[1][1] - due[0][1] == HOUR
    assert (recovery.recover_plans().sent, plan.status) == (0, "waiting_retry")


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("moved", [-DAY, -HOUR, HOUR, DAY], ids=["-1d", "-1h", "+1h", "+1d"])
def test_a_moved_lease_is_free_or_its_owners_as_the_clock_says(moved):
    plan = hold_plan(data_step("a", "count_workspaces"))
    run = claim(plan)
    move(plan, lease_until=moved)
    swept = recovery.recover_plans()
    assert swept.sent == (1 if moved < timedelta(0) else 0)
    ExecutionPlan.objects.hold(plan.pk, fence=run.fence)  # its owner goes on: the lease is as long as any other
    plan.refresh_from_db()
    assert timedelta(0) < plan.lease_until - database_now() <= timedelta(seconds=live.CAPSTAN_LEASE_SECONDS)
    assert ExecutionPlan.objects.claim(plan.pk, owner="other") is None


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("moved", [-DAY, -HOUR, HOUR, DAY], ids=["-1d", "-1h", "+1h", "+1d"])
def test_a_moved_dispatch_is_told_again(moved):
    """One that lies ahead was stamped by a clock that has been put right since."""
    plan = hold_plan(data_step("a", "count_workspaces"))
    ExecutionPlan.objects.mark_dispatched(plan.pk)
    move(plan, dispatched_at=moved)
    assert recovery.recover_plans().sent == 1
    assert recovery.recover_plans().sent == 0
    assert run_plan(plan, agents_on(None, count_workspaces)) == Left.ENDED


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("moved", [-DAY, -HOUR, HOUR, DAY], ids=["-1d", "-1h", "+1h", "+1d"])
def test_a_moved_wait_is_over_or_not_as_the_clock_says(moved):
    turn = make_turn(not_before=timezone.now())
    move(turn, not_before=moved)
    over = moved < timedelta(0)
    assert len(Turn.objects.take_due()) == over
    assert (Turn.objects.claim(turn.pk, owner="any") is not None) == over
