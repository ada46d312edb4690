"""Messages go out after the commit or not at all, and a dead broker loses none (CAP-062; cases H/24, H/21)."""

from __future__ import annotations

import base64
import json
import threading
import time
from datetime import timedelta

import pytest
import redis as redis_client
from celery import current_app
from django.db import connection, transaction

from llm.errors import RateLimitError
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import agents_on, data_step, hold_plan, llm_step, run_plan
from tests.support.runs import make_turn
from tests.worker.test_runner import count_workspaces
from tools.ports import dispatcher
from tools.runs import ClockTimestamp
from worker import dispatch, recovery
from worker.runner import Left

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_redis(redis):
    return redis


def sent(redis: redis_client.Redis, queue: str = "plans") -> list[int]:
    """Whom the messages in a queue are about, oldest first."""
    return [_about(raw) for raw in reversed(redis.lrange(queue, 0, -1))]


def _about(raw: bytes) -> int:
    message = json.loads(raw)
    body = json.loads(base64.b64decode(message["body"]))
    assert message["headers"]["eta"] is None, "no message is for later: not_before and the sweep are (H/21)"
    return int(body[0][0])


def visible_elsewhere(plan: ExecutionPlan) -> bool:
    """Whether another connection sees the plan now."""
    seen: list[bool] = []

    def look() -> None:
        seen.append(ExecutionPlan.objects.filter(pk=plan.pk).exists())
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return seen[0]


class Refused(Exception):
    pass


def test_h24_a_nested_block_sends_after_the_outer_commit(redis):
    """H/24 a."""
    with transaction.atomic():
        with transaction.atomic():
            plan = hold_plan(llm_step("a"))
            dispatcher().dispatch_after_commit(plan)
        assert sent(redis) == []
        assert not visible_elsewhere(plan)
    assert sent(redis) == [plan.pk]


def test_h24_an_inner_rollback_sends_nothing(redis):
    """H/24 b."""
    with transaction.atomic(), pytest.raises(Refused), transaction.atomic():
        dispatcher().dispatch_after_commit(hold_plan(llm_step("a")))
        raise Refused
    assert (sent(redis), ExecutionPlan.objects.count()) == ([], 0)


def test_h24_an_outer_rollback_sends_nothing(redis):
    """H/24 c."""
    with pytest.raises(Refused), transaction.atomic():
        with transaction.atomic():
            dispatcher().dispatch_after_commit(hold_plan(llm_step("a")))
        raise Refused
    assert (sent(redis), ExecutionPlan.objects.count()) == ([], 0)


def test_h24_without_a_transaction_it_is_sent_at_once(redis):
    """H/24 f."""
    plan, turn = hold_plan(llm_step("a")), make_turn()
    dispatcher().dispatch_after_commit(ExecutionPlan, plan.pk)
    dispatcher().dispatch_after_commit(turn)
    assert (sent(redis), sent(redis, "turns")) == ([plan.pk], [turn.pk])


def test_h24_a_callback_that_fails_does_not_keep_the_next_from_going_out(redis):
    """H/24 g."""

    def broken() -> None:
        raise Refused

    with transaction.atomic():
        plan = hold_plan(llm_step("a"))
        transaction.on_commit(broken, robust=True)
        dispatcher().dispatch_after_commit(plan)
    assert sent(redis) == [plan.pk]


def test_h24_the_commit_that_ends_a_step_starts_the_next_one():
    """H/24 h."""
    plan = hold_plan(data_step("a", "count_workspaces"), data_step("b", "count_workspaces"))
    run_plan(plan, agents_on(None, count_workspaces))
    ended, began = (PlanStep.objects.get(plan=plan, key=key) for key in "ab")
    assert ended.ended_at <= began.started_at  # in one transaction, in this order
    assert plan.status == "completed"


@pytest.fixture
def dead_broker(monkeypatch, tmp_path):
    """A broker address at which nobody listens, for the sender alone."""
    nobody = f"redis+socket://{tmp_path}/nobody.sock?virtual_host=0"
    monkeypatch.setattr(current_app.conf, "broker_write_url", nobody)
    dispatch._connection.cache_clear()
    yield
    monkeypatch.undo()
    dispatch._connection.cache_clear()


def test_a_dead_broker_is_noticed_within_a_second_and_left_to_the_sweep(redis, request, caplog):
    plan = hold_plan(llm_step("a"))
    request.getfixturevalue("dead_broker")
    began = time.monotonic()
    dispatcher().dispatch_after_commit(plan)
    assert time.monotonic() - began < 3 * dispatch.SEND_WITHIN_S
    assert "the sweep will send it" in caplog.text
    plan.refresh_from_db()
    assert plan.dispatched_at is None


def test_the_sweep_sends_what_was_never_sent_once_and_backs_off(redis):
    plans = [hold_plan(llm_step("a")) for _ in range(3)]
    assert recovery.recover_plans().sent == 3
    assert sent(redis) == [plan.pk for plan in plans]
    assert recovery.recover_plans().sent == 0  # told a moment ago
    for expected in (10, 20, 40, 60, 60):
        ExecutionPlan.objects.update(dispatched_at=ClockTimestamp() - timedelta(seconds=expected - 1))
        assert recovery.recover_plans().sent == 0
        ExecutionPlan.objects.update(dispatched_at=ClockTimestamp() - timedelta(seconds=expected + 1))
        assert recovery.recover_plans().sent == 3


def test_a_run_that_failed_twice_goes_to_the_suspect_queue(redis):
    plan = hold_plan(llm_step("a"))
    for _ in range(2):
        ExecutionPlan.objects.claim(plan.pk, owner="dies")
        ExecutionPlan.objects.update(lease_until=ClockTimestamp() - timedelta(seconds=1))
    recovery.recover_plans()
    assert (sent(redis), sent(redis, "suspect")) == ([], [plan.pk])
    assert ExecutionPlan.objects.claim(plan.pk, owner="ordinary") is None
    assert ExecutionPlan.objects.claim(plan.pk, owner="suspect", suspect=True) is not None


@pytest.mark.parametrize("hours", [2, 12])
def test_h21_a_long_wait_is_a_row_and_no_message(redis, scripted_llm, hours):
    plan = hold_plan(llm_step("a"))
    agents = agents_on(scripted_llm(RateLimitError(retry_after_s=hours * 3600), "Done."))
    run_plan(plan, agents)
    assert (plan.status, recovery.recover_plans().sent, sent(redis)) == ("waiting_retry", 0, [])
    due = ClockTimestamp() - timedelta(seconds=1)
    ExecutionPlan.objects.update(not_before=due)
    PlanStep.objects.update(not_before=due)
    assert recovery.recover_plans().sent == 1
    run_plan(plan, agents)
    run_plan(plan, agents)  # a second copy of the message
    assert (plan.status, PlanStep.objects.get(plan=plan).attempts) == ("completed", 1)


def test_a_run_that_is_handed_back_says_that_it_was_sent(redis):
    """The sweep must not send again at its next tick what its owner has just put behind the others."""
    plan = hold_plan(data_step("a", "count_workspaces"), data_step("b", "count_workspaces"))
    assert run_plan(plan, agents_on(None, count_workspaces), slice_s=0.0) == Left.HANDED_BACK
    assert (plan.status, plan.dispatches, sent(redis)) == ("pending", 1, [plan.pk])
    assert recovery.recover_plans().sent == 0
