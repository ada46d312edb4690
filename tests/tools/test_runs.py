"""Claims, fences and arrows of leased runs, on committed rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone

from chat.models import Turn
from plan.models import ExecutionPlan
from tests.support.runs import claim, make_conversation, make_plan, make_turn
from tools.errors import LeaseLost
from tools.runs import MAX_ATTEMPTS, SUSPECT_ATTEMPTS, ClockTimestamp, RunStatus

pytestmark = pytest.mark.django_db(transaction=True)


def expire(plan: ExecutionPlan) -> None:
    ExecutionPlan.objects.filter(pk=plan.pk).update(lease_until=timezone.now() - timedelta(hours=1))


def claim_on_own_connection(pk: int, owner: str) -> int | None:
    try:
        won = ExecutionPlan.objects.claim(pk, owner=owner)
        return won.fence if won else None
    finally:
        connection.close()


def test_cap_052_a_plan_is_claimed_once_when_workers_race():
    plan = make_plan()
    with ThreadPoolExecutor(8) as pool:
        fences = list(pool.map(lambda owner: claim_on_own_connection(plan.pk, owner), "abcdefgh"))
    plan.refresh_from_db()
    assert [fence for fence in fences if fence] == [plan.fence]
    assert (plan.status, plan.attempts) == (RunStatus.RUNNING, 1)


def test_a_silent_owner_is_replaced_and_its_fence_writes_nothing_any_more():
    plan = make_plan()
    first = claim(plan)
    assert ExecutionPlan.objects.claim(plan.pk, owner="b") is None
    expire(plan)
    second = claim(plan, "b")
    assert second.fence == first.fence + 1
    with pytest.raises(LeaseLost):
        ExecutionPlan.objects.hold(plan.pk, fence=first.fence)
    with pytest.raises(LeaseLost):
        ExecutionPlan.objects.leave(plan.pk, fence=first.fence, to=RunStatus.COMPLETED)
    ExecutionPlan.objects.hold(plan.pk, fence=second.fence)


def test_attempts_count_claims_since_the_last_progress_and_end_at_the_cap():
    plan = make_plan()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        won = ExecutionPlan.objects.claim(plan.pk, owner="a", suspect=attempt > SUSPECT_ATTEMPTS)
        assert won is not None, attempt
        assert won.attempts == attempt
        expire(plan)
    assert ExecutionPlan.objects.claim(plan.pk, owner="a", suspect=True) is None
    assert list(ExecutionPlan.objects.spent()) == [plan]


def test_progress_and_hand_back_start_the_count_again():
    plan = make_plan()
    run = claim(plan)
    ExecutionPlan.objects.hold(plan.pk, fence=run.fence)
    plan.refresh_from_db()
    assert plan.attempts == 0
    ExecutionPlan.objects.leave(plan.pk, fence=run.fence, to=RunStatus.PENDING)
    assert claim(plan).fence == run.fence + 1


def test_a_suspect_run_is_claimed_only_where_suspects_are():
    plan = make_plan(attempts=SUSPECT_ATTEMPTS)
    assert ExecutionPlan.objects.claim(plan.pk, owner="a") is None
    assert ExecutionPlan.objects.claim(plan.pk, owner="a", suspect=True) is not None


def test_a_run_that_waits_is_free_only_when_it_is_due():
    plan = make_plan()
    run = claim(plan)
    later = timezone.now() + timedelta(hours=1)
    ExecutionPlan.objects.leave(plan.pk, fence=run.fence, to=RunStatus.WAITING_RETRY, not_before=later)
    assert ExecutionPlan.objects.claim(plan.pk, owner="b") is None
    assert ExecutionPlan.objects.take_due() == []
    ExecutionPlan.objects.filter(pk=plan.pk).update(not_before=ClockTimestamp())
    assert [due.pk for due in ExecutionPlan.objects.take_due()] == [plan.pk]
    assert ExecutionPlan.objects.claim(plan.pk, owner="b") is not None


def test_a_cancelled_run_is_not_claimed():
    plan = make_plan()
    assert ExecutionPlan.objects.request_cancel(plan.pk)
    assert ExecutionPlan.objects.claim(plan.pk, owner="a") is None
    assert list(ExecutionPlan.objects.cancel_orphans()) == [plan]


def test_cap_064_recovery_redispatches():
    """The sweep returns what it marks, in one statement, and does not tell workers again at every tick."""
    fresh, silent, held = make_plan(), make_plan(), make_plan()
    claim(silent)
    expire(silent)
    claim(held)
    due = ExecutionPlan.objects.take_due()
    assert {run.pk for run in due} == {fresh.pk, silent.pk}
    assert ExecutionPlan.objects.take_due() == []
    ExecutionPlan.objects.filter(pk=fresh.pk).update(dispatched_at=timezone.now() - timedelta(seconds=11))
    assert [run.pk for run in ExecutionPlan.objects.take_due()] == [fresh.pk]
    ExecutionPlan.objects.filter(pk=fresh.pk).update(dispatched_at=timezone.now() - timedelta(seconds=11))
    assert ExecutionPlan.objects.take_due() == [], "the second pause is 20 s"


def test_one_active_turn_a_conversation():
    conversation = make_conversation()
    turn = make_turn(conversation)
    with pytest.raises(IntegrityError):
        make_turn(conversation)
    run = claim(turn)
    Turn.objects.leave(turn.pk, fence=run.fence, to=RunStatus.COMPLETED)
    make_turn(conversation)


def test_a_terminal_status_never_changes():
    plan = make_plan()
    run = claim(plan)
    ExecutionPlan.objects.leave(plan.pk, fence=run.fence, to=RunStatus.FAILED, error="broken")
    assert ExecutionPlan.objects.claim(plan.pk, owner="b") is None
    assert not ExecutionPlan.objects.request_cancel(plan.pk)
    assert not ExecutionPlan.objects.move(plan.pk, frm=("pending", "running"), to="cancelled")
    plan.refresh_from_db()
    assert plan.status == RunStatus.FAILED
    assert plan.ended_at is not None
