"""Celery settings that would lose or double work, found by `manage.py check --deploy` (CAP-063)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register

from worker.runner import SLICE_S

LONGEST_CALL_S = 600.0  # a model call that runs into the end of its step's limit


@register(Tags.compatibility, deploy=True)
def celery_settings(**_options: Any) -> list[CheckMessage]:
    """Each bad combination, named, with its cure."""
    return list(_problems())


def _problems() -> Iterator[CheckMessage]:
    def of(name: str, default: object = None) -> Any:
        return getattr(settings, f"CELERY_{name}", default)

    def error(number: int, text: str, hint: str) -> Error:
        return Error(text, hint=hint, id=f"capstan_worker.E{number:03}")

    if not of("TASK_ACKS_LATE"):
        yield error(1, "CELERY_TASK_ACKS_LATE is off: a dead worker takes its messages with it.", "Set it to True.")
    if of("WORKER_PREFETCH_MULTIPLIER") != 1:
        yield error(
            2,
            f"CELERY_WORKER_PREFETCH_MULTIPLIER is {of('WORKER_PREFETCH_MULTIPLIER')}: runs wait for a busy one.",
            "Set it to 1.",
        )
    least = 2 * (SLICE_S + LONGEST_CALL_S)
    visible = of("BROKER_TRANSPORT_OPTIONS", {}).get("visibility_timeout", 3_600)
    if str(of("BROKER_URL", "")).startswith(("redis", "sentinel")) and visible < least:
        yield error(
            3,
            f"The broker's visibility_timeout is {visible} s: it would send running work a second time.",
            f"Set it to {least:.0f} s or more (twice a slice and the longest call).",
        )
    if of("TASK_REJECT_ON_WORKER_LOST"):
        yield error(
            4,
            "CELERY_TASK_REJECT_ON_WORKER_LOST is on: a step that kills its process would be sent again without end.",
            "Leave it off; the sweep recovers lost work and counts its attempts.",
        )
    if not of("TASK_IGNORE_RESULT"):
        yield error(5, "CELERY_TASK_IGNORE_RESULT is off: results would pile up in Redis.", "Set it to True.")
    if of("TASK_TIME_LIMIT") or of("TASK_SOFT_TIME_LIMIT"):
        yield error(
            6,
            "CELERY_TASK_TIME_LIMIT or _SOFT_TIME_LIMIT is set: it would kill plans that only wait for a model.",
            "Leave both out; leases and limits of steps bound the work.",
        )
    if of("TASK_ALWAYS_EAGER"):
        yield error(7, "CELERY_TASK_ALWAYS_EAGER is on: plans would run in the web process.", "Leave it out.")
    sweep = of("BEAT_SCHEDULE", {}).get("sweep", {})
    every = sweep.get("schedule")
    if not isinstance(every, (int, float)) or every > settings.CAPSTAN_LEASE_SECONDS / 6:
        yield error(
            8,
            f"The sweep comes every {every} s; recovery would take longer than the lease allows for.",
            f"Schedule worker.sweep every {settings.CAPSTAN_LEASE_SECONDS / 6:g} s (CAPSTAN_LEASE_SECONDS / 6).",
        )
    elif not sweep.get("options", {}).get("expires"):
        yield error(9, "Sweep messages never expire: a stopped worker would find a pile of them.", "Set `expires`.")
