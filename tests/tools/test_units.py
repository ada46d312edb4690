"""Units commit whole or not at all, events in order, the fence last."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from context.models import ScopeVersion
from events.models import Event, Stream
from events.types import EventName
from plan.models import ExecutionPlan
from tests.support.runs import claim, make_plan
from tools.errors import LeaseLost, WaitingInsideTransaction
from tools.runs import RunRef, RunStatus
from tools.units import Arrow, intervention, release_connection, unit

pytestmark = pytest.mark.django_db(transaction=True)


def seqs(stream_id) -> list[tuple[int, str]]:
    return list(Event.objects.filter(stream=stream_id).values_list("seq", "name"))


def test_a_unit_commits_rows_events_and_scope_together():
    plan = make_plan()
    run = claim(plan)
    with unit(run) as opened:
        opened.record(EventName.PLAN_STEP, step="a")
        opened.record(EventName.PLAN_STEP, step="b")
        opened.bump(plan.workspace_id)
    assert seqs(plan.stream_id) == [(1, "plan_step"), (2, "plan_step")]
    assert ScopeVersion.objects.current(plan.workspace_id) == 1


def test_an_owner_that_was_replaced_commits_nothing():
    plan = make_plan()
    run = claim(plan)
    ExecutionPlan.objects.filter(pk=plan.pk).update(lease_until=timezone.now() - timedelta(hours=1))
    claim(plan, "b")
    with pytest.raises(LeaseLost), unit(run) as opened:
        opened.record(EventName.PLAN_STEP, step="a")
        opened.bump(plan.workspace_id)
        ExecutionPlan.objects.filter(pk=plan.pk).update(goal="written by a zombie")
    plan.refresh_from_db()
    assert plan.goal == "a goal"
    assert seqs(plan.stream_id) == []
    assert ScopeVersion.objects.current(plan.workspace_id) == 0


@pytest.mark.parametrize("closing", [None, lambda: Arrow(RunStatus.COMPLETED)], ids=["goes on", "ends"])
def test_the_fence_is_the_last_statement_of_every_unit(closing):
    plan = make_plan()
    run = claim(plan)
    with CaptureQueriesContext(connection) as captured, unit(run) as opened:
        opened.record(EventName.PLAN_STEP, step="a")
        opened.bump(plan.workspace_id)
        opened.close_with(closing)
    statements = [query["sql"] for query in captured if query["sql"] not in {"BEGIN", "COMMIT"}]
    assert statements[-1].replace('"', "").startswith("UPDATE capstan_plan_executionplan")
    assert "fence = " in statements[-1].replace('"', "").split("WHERE")[1]


def test_a_unit_refuses_to_be_nested():
    run = claim(make_plan())
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic(), unit(run):
        pass


def test_the_first_flush_hook_is_ours():
    order: list[str] = []
    run = claim(make_plan())
    with unit(run) as opened:
        transaction.on_commit(lambda: order.append("tool"))
        opened.after_commit(lambda: order.append("ours"))
    assert order == ["ours", "tool"]


def test_an_intervention_waits_for_the_unit_and_sees_what_it_wrote():
    """One lock order: stream, then run. A change from outside never overtakes an open unit that is closing."""
    plan = make_plan()
    run = claim(plan)
    inside, seen = threading.Event(), []

    def outside() -> None:
        try:
            inside.wait(10)
            with intervention(ExecutionPlan, plan.pk) as change:
                seen.append(change.run.status)
        finally:
            connection.close()

    other = threading.Thread(target=outside)
    other.start()

    def closing() -> Arrow:
        inside.set()
        other.join(0.3)  # it must not get through while we hold the locks
        assert seen == []
        return Arrow(RunStatus.COMPLETED)

    with unit(run) as opened:
        opened.close_with(closing)
    other.join(10)
    assert seen == [RunStatus.COMPLETED]


def test_concurrent_writers_leave_a_gapless_stream():
    plan = make_plan()

    def write() -> None:
        try:
            for _ in range(20):
                with intervention(ExecutionPlan, plan.pk) as change:
                    change.record(EventName.PLAN_ADAPTED)
        finally:
            connection.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [seq for seq, _ in seqs(plan.stream_id)] == list(range(1, 81))
    assert Stream.objects.get(pk=plan.stream_id).last_seq == 80


def test_waiting_inside_a_transaction_is_refused():
    with pytest.raises(WaitingInsideTransaction), transaction.atomic():
        release_connection()
    release_connection()


def test_run_ref_names_the_fence():
    plan = make_plan()
    assert isinstance(claim(plan), RunRef)
