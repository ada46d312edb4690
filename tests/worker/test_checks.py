"""Bad Celery settings are named before they lose work (CAP-063)."""

from __future__ import annotations

import pytest
from django.conf import settings as live

from worker.checks import celery_settings


def test_the_settings_we_ship_pass():
    assert celery_settings() == []


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("CELERY_TASK_ACKS_LATE", False, 1),
        ("CELERY_WORKER_PREFETCH_MULTIPLIER", 4, 2),
        ("CELERY_BROKER_TRANSPORT_OPTIONS", {"visibility_timeout": 60}, 3),
        ("CELERY_TASK_REJECT_ON_WORKER_LOST", True, 4),
        ("CELERY_TASK_IGNORE_RESULT", False, 5),
        ("CELERY_TASK_TIME_LIMIT", 60, 6),
        ("CELERY_TASK_ALWAYS_EAGER", True, 7),
        ("CELERY_BEAT_SCHEDULE", {}, 8),
        ("CELERY_BEAT_SCHEDULE", {"sweep": {"schedule": 1.0, "options": {}}}, 9),
    ],
)
def test_a_bad_setting_is_named_with_its_cure(settings, name, value, number):
    setattr(settings, name, value)
    found = celery_settings()
    assert [message.id for message in found] == [f"capstan_worker.E{number:03}"]
    assert found[0].hint
    assert live.configured
