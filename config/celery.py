"""The Celery app. Its messages are wake-ups: what they name, and who may run it, is decided by rows in PostgreSQL."""

import os
import sys
from typing import Any

from celery import Celery
from celery.signals import beat_init, import_modules, worker_ready

from config import collector

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import_modules.connect(collector.pause)  # the app's own receivers, between these two, set Django up
app = Celery("capstan")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["worker"])
import_modules.connect(collector.resume)

READY_LINE = "CAPSTAN_READY_LINE"  # the variable in which the manager says what it waits for


@worker_ready.connect
@beat_init.connect
def tell_the_manager(**_said: Any) -> None:
    """Print the line that the manager waits for; past Celery's redirection, which would log it."""
    line, stream = os.environ.get(READY_LINE), sys.__stderr__
    if line and stream is not None:
        stream.write(f"{line}\n")
        stream.flush()
