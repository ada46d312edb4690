"""Wakes a worker for each plan that none works on; what the sweep does by itself every few seconds (CAP-064)."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from worker import recovery


class Command(BaseCommand):
    help = "Hand back to the queue the plans that no worker works on, and end those that cannot go on (CAP-064)."

    def handle(self, **_options: object) -> None:
        swept = recovery.recover_plans()
        self.stdout.write(f"{swept.sent} plans sent, {swept.failed} failed, {swept.cancelled} cancelled")
