"""`manage.py up`: PostgreSQL, Valkey, web, workers and beat under one manager, until Ctrl-C (design § 9)."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from config.errors import StartRefused
from config.processes import stop_with_parent
from config.stack import Stack
from config.supervisor import Stopped


class Command(BaseCommand):
    help = "Start everything: servers, web, workers, beat. Ctrl-C stops all of it."
    requires_system_checks = ()  # they run below, once the servers answer

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=settings.PORT, help="where the web process listens (PORT)")
        parser.add_argument("--stop-with-parent", action="store_true", help="stop when the calling process ends")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["stop_with_parent"]:
            stop_with_parent()
        self.check()
        stack = Stack(
            state=settings.STATE,
            base_dir=settings.BASE_DIR,
            port=options["port"],
            database_url=settings.GIVEN_SERVERS.database_url,
            redis_url=settings.GIVEN_SERVERS.redis_url,
            static_root=settings.STATIC_ROOT,
        )
        try:
            stack.run()
        except StartRefused as exc:
            raise CommandError(exc.reason, returncode=2) from exc
        except Stopped:
            self.stdout.write("Stopped while starting.")
