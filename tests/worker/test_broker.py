"""A message whose connection is gone ends no worker (issue 6, fault 3)."""

from __future__ import annotations

import pytest
from celery import current_app

from worker.broker import LastingQoS
from worker.dispatch import send

PAST = {"ack": "acknowledged"}


@pytest.mark.parametrize("end", ["ack", "reject", "requeue"])
def test_a_task_that_ends_after_its_connection_was_lost_goes_on_and_it_is_told(redis, end, caplog):
    assert send("plan", 7)
    with current_app.connection_for_read() as lost:
        channel = lost.default_channel
        message = channel.basic_get("plans")
        assert message is not None
        lost.transport.client = None  # how Celery leaves a connection that broke; then it closes it once more
        channel.close()
        assert channel.closed
        getattr(message, end)()
    assert f"{PAST.get(end, 'rejected')}: the broker's connection is gone" in caplog.messages[-1]


class Interrupted(LastingQoS):
    """Its connection is lost while it acknowledges, where there is one left to lose."""

    def _remove_from_indices(self, tag, pipe=None):
        self.channel.connection.client = None
        self.channel.close()
        return super()._remove_from_indices(tag, pipe)


def test_a_connection_may_go_while_a_message_is_acknowledged(redis):
    with current_app.connection_for_read() as lost:
        Interrupted(lost.default_channel).ack("a tag")


class Wrong(LastingQoS):
    def _remove_from_indices(self, tag, pipe=None):
        return None


def test_what_is_wrong_while_the_connection_stands_is_no_lost_connection(redis):
    with current_app.connection_for_read() as healthy, pytest.raises(AttributeError, match="execute"):
        Wrong(healthy.default_channel).ack("a tag")
