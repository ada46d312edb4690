"""A message whose connection is gone ends no worker (issue 6, fault 3)."""

from __future__ import annotations

import pytest
from celery import current_app

from worker.dispatch import send


@pytest.mark.parametrize("end", ["ack", "reject", "requeue"])
def test_a_task_that_ends_after_its_connection_was_lost_ends_quietly(redis, end):
    assert send("plan", 7)
    with current_app.connection_for_read() as lost:
        channel = lost.default_channel
        message = channel.basic_get("plans")
        assert message is not None
        lost.transport.client = None  # how Celery leaves a connection that broke; then it closes it once more
        channel.close()
        assert channel.closed
        getattr(message, end)()
