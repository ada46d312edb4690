"""Acknowledgements that outlive the broker's connection; kombu's would end the worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.transport import redis

logger = logging.getLogger(__name__)


class LastingQoS(redis.QoS):
    """Leaves messages alone whose connection is gone.

    A task that ends after its broker's connection was lost acknowledges its message on the old channel, and Celery
    closes that channel a second time. For either kombu 5.7 raises an AttributeError, which ends the worker with all
    that it runs. What stays unacknowledged is no loss: it is delivered again some day, and the claim refuses it.
    """

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        with self._unless_gone("acknowledged"):
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or away."""
        with self._unless_gone("rejected"):
            super().reject(delivery_tag, requeue=requeue)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put back what was not acknowledged; asked for when the channel closes."""
        with self._unless_gone("restored"):
            super().restore_unacked_once(stderr)

    @contextmanager
    def _unless_gone(self, what: str) -> Iterator[None]:
        try:
            yield
        except (AttributeError, AssertionError):  # the latter: kombu finds what its first try to restore left behind
            transport = self.channel.connection
            if transport is not None and transport.client is not None:
                raise
            logger.warning("not %s: the broker's connection is gone; what it had delivered comes again", what)


def install() -> None:
    """Give it to every Redis channel of this process: the class is an attribute there, and no setting names it."""
    redis.Channel.QoS = LastingQoS
