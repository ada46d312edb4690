"""Stopping a worker: its model calls end at once, its plans and turns are handed back (design § 5.5).

What still runs after `GRACE_S` is killed and recovered as a crash.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from celery.signals import worker_shutting_down

from tools import heartbeat

logger = logging.getLogger(__name__)

GRACE_S = 3.0
KILLED = 75  # exit status: some runs were left to recovery

_begun = threading.Event()


def begun() -> bool:
    """Whether this process is stopping; nothing is claimed from then on."""
    return _begun.is_set()


@worker_shutting_down.connect(dispatch_uid="capstan.shutdown")
def begin(**_signal: Any) -> None:
    """Cancel the model calls of this process; runs that do not end within the grace are left to recovery."""
    if _begun.is_set():
        return
    _begun.set()
    # The signal's handler runs between two bytecodes of any code, perhaps one that holds a lock we need.
    threading.Thread(target=_stop, name="shutdown", daemon=True).start()


def _stop() -> None:
    until = time.monotonic() + GRACE_S
    held = heartbeat.shut_down()
    logger.info("stopping; %d runs are handed back", held)
    while time.monotonic() < until:
        if not heartbeat.watched():
            return
        time.sleep(0.05)
    if heartbeat.watched():
        logger.warning("%d runs did not end within %.0f s; recovery takes them", heartbeat.watched(), GRACE_S)
        logging.shutdown()
        os._exit(KILLED)
