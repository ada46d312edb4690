"""The heartbeat keeps leases alive, and tells a run when it should stop."""

from __future__ import annotations

import threading

import pytest

from llm.ports import CancelToken
from plan.models import ExecutionPlan
from tests.support.runs import claim, make_plan
from tools.heartbeat import shut_down, watched, watching
from tools.runs import RunStatus

pytestmark = pytest.mark.django_db(transaction=True)


def cancelled(token: CancelToken) -> threading.Event:
    """Set once the token is cancelled."""
    event = threading.Event()
    token.on_cancel(event.set)
    return event


def test_a_watched_lease_outlives_its_length(settings):
    settings.CAPSTAN_LEASE_SECONDS = 0.6
    plan = make_plan()
    token = CancelToken()
    with watching(claim(plan), cancel=token, deadline_s=60):
        assert not cancelled(token).wait(2.5)
        assert ExecutionPlan.objects.claim(plan.pk, owner="b") is None
    assert watched() == 0


def test_a_cancel_request_reaches_the_run():
    plan = make_plan()
    token = CancelToken()
    with watching(claim(plan), cancel=token, deadline_s=60):
        ExecutionPlan.objects.request_cancel(plan.pk)
        assert cancelled(token).wait(6)
    assert token.reason == "cancel"


def test_a_lost_lease_reaches_the_run():
    plan = make_plan()
    token = CancelToken()
    with watching(claim(plan), cancel=token, deadline_s=60):
        ExecutionPlan.objects.move(plan.pk, frm=(RunStatus.RUNNING,), to=RunStatus.PENDING)
        assert cancelled(token).wait(6)
    assert token.reason == "lease_lost"


def test_a_unit_past_its_deadline_is_not_renewed(settings):
    settings.CAPSTAN_LEASE_SECONDS = 0.6
    plan = make_plan()
    token = CancelToken()
    with watching(claim(plan), cancel=token, deadline_s=0.1):
        assert cancelled(token).wait(6)
    assert token.reason == "deadline"


def test_a_process_that_stops_cancels_its_runs():
    token = CancelToken()
    with watching(claim(make_plan()), cancel=token, deadline_s=60):
        assert shut_down() == 1
    assert token.reason == "shutdown"
