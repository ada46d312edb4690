"""The one place that sends Celery messages (CAP-062). They wake workers; which run is taken, the claim decides."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from celery import current_app
from django.db import router, transaction
from kombu import Connection
from kombu.exceptions import LimitExceeded, OperationalError
from kombu.pools import producers
from redis import RedisError

from tools.runs import LeasedRun, LeasedRunQuerySet
from worker import shutdown

logger = logging.getLogger(__name__)

SEND_WITHIN_S = 1.0
SUSPECT_QUEUE = "suspect"
TASKS = {
    "turn": ("worker.run_turn", "turns"),
    "plan": ("worker.execute_plan", "plans"),
    "call": ("worker.run_call", "turns"),
}


class CeleryDispatcher:
    """Fills `tools.ports.Dispatcher`."""

    def dispatch_after_commit(self, run: LeasedRun | type[LeasedRun], pk: int | None = None) -> None:
        """Wake a worker for a run once the open transaction has committed, or now when none is open.

        Args:
            run: the run, or its model with `pk`.

        The commit that makes a run ready also says that it was dispatched, so that nothing is written while a worker
        claims it; a run that its owner hands back is still running here, locked by nobody, and is marked afterwards. A
        dead broker is logged within about a second and left to the sweep, which finds the run undispatched; where this
        process dies before it has sent, the sweep sends after its first pause.

        Source: CAP-062.
        """
        model = run if isinstance(run, type) else type(run)
        key = pk if pk is not None else run.pk
        if not isinstance(key, int):
            raise TypeError("dispatch_after_commit needs a saved run, or a model and its pk")
        rows: LeasedRunQuerySet[Any] = model._default_manager.all()  # type: ignore[assignment]
        marked = rows.mark_dispatched(key)

        def send_now() -> None:
            sent = False
            try:  # a process that shuts down must not take it itself; the sweep sends it within seconds
                sent = not shutdown.begun() and send(model.KIND, key)
            finally:
                if sent and not marked:
                    rows.mark_dispatched(key)
                elif marked and not sent:
                    rows.not_dispatched(key)

        transaction.on_commit(send_now, using=router.db_for_write(model), robust=True)


def send(kind: str, pk: int, *, suspect: bool = False) -> bool:
    """Publish the wake-up of one run; False when the broker could not be reached."""
    task, queue = TASKS[kind]
    try:
        with producers[_connection()].acquire(block=True, timeout=SEND_WITHIN_S) as producer:
            current_app.send_task(
                task,
                args=[pk],
                kwargs={"suspect": True} if suspect else {},
                queue=SUSPECT_QUEUE if suspect else queue,
                producer=producer,
                retry=False,
                ignore_result=True,
            )
    except (OperationalError, LimitExceeded, RedisError, OSError) as exc:
        logger.warning("no message for %s %s, the sweep will send it: %s", kind, pk, exc)
        return False
    return True


@cache
def _connection() -> Connection:
    """A connection for sending alone: unlike a worker's it never waits long for an answer."""
    app_connection: Any = current_app.connection_for_write()
    options = {
        **app_connection.transport_options,
        "socket_timeout": SEND_WITHIN_S,
        "socket_connect_timeout": SEND_WITHIN_S,
        "max_retries": 1,  # of connecting; by default kombu sleeps between several tries
        "interval_start": 0,
        "interval_step": 0,
    }
    return Connection(app_connection.as_uri(include_password=True), transport_options=options)
