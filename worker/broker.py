"""Acknowledgements that outlive the broker's connection; kombu's would end the worker."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis


class LastingQoS(redis.QoS):
    """Leaves messages alone whose connection is gone.

    A task that ends after its broker's connection was lost acknowledges its message on the old channel, and Celery
    closes that channel a second time. For either kombu 5.7 raises an AttributeError, which ends the worker with all
    that it runs. What stays unacknowledged is no loss: it is delivered again some day, and the claim refuses it.
    """

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        if not self._gone():
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or away."""
        if not self._gone():
            super().reject(delivery_tag, requeue=requeue)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put back what was not acknowledged; asked for when the channel closes."""
        if not self._gone():
            super().restore_unacked_once(stderr)

    def _gone(self) -> bool:
        transport = self.channel.connection
        return transport is None or transport.client is None


def install() -> None:
    """Give it to every Redis channel of this process: the class is an attribute there, and no setting names it."""
    redis.Channel.QoS = LastingQoS
