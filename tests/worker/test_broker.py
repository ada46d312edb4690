"""A message whose connection is gone ends no worker (issue 6, fault 3)."""

from __future__ import annotations

import pytest
from celery import current_app

from worker.dispatch import send


@pytest.fixture
def lost(redis):
    """A connection on which one message was received, and the message."""
    assert send("plan", 7)
    with current_app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("plans")
        assert message is not None
        yield connection, message


@pytest.mark.parametrize("end", ["ack", "reject", "requeue"])
def test_a_task_that_ends_after_its_connection_was_lost_ends_quietly(lost, end):
    connection, message = lost
    connection.release()  # as Celery does with one that broke
    getattr(message, end)()


def test_a_channel_is_closed_though_its_connection_is_gone(lost):
    connection, _message = lost
    connection.transport.client = None  # how Celery leaves one whose first close was cut short
    connection.default_channel.close()
    assert connection.default_channel.closed
