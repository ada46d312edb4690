"""Runs the benches of `bench/` on the servers of this state folder, one after another (`make bench`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

BENCHES = ("tools", "turns", "plans", "flat", "many", "first_token", "rounds")
ALL = BENCHES[:-1]  # `turns` runs `rounds`


class Command(BaseCommand):
    help = "Measure Capstan beside its peers and floors, in one run; a bench's name runs that one alone."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("bench", nargs="?", choices=BENCHES, help="one alone; all of them without a name")
        parser.add_argument("arguments", nargs="*", help="handed to that one")

    def handle(self, *, bench: str | None, arguments: list[str], **_options: object) -> None:
        parts = connection.settings_dict
        url = f"postgres://{parts['USER']}@/{parts['NAME']}?host={parts['HOST']}"
        environment = {
            **os.environ,
            "DATABASE_URL": os.environ.get("DATABASE_URL") or url,
            "REDIS_URL": settings.REDIS_URL,
            "SECRET_KEY": settings.SECRET_KEY,
        }
        failed = []
        for name in [bench] if bench else ALL:
            self.stdout.write(f"== {name}")
            self.stdout.flush()
            script = Path(settings.BASE_DIR) / "bench" / f"{name}.py"
            code = _run([sys.executable, str(script), *arguments], environment)
            if code > 128 or code < 0:
                raise CommandError(f"{name} was stopped", returncode=code if code > 0 else 128 - code)
            if code:
                failed.append(name)
        if failed:
            raise CommandError(f"failed: {', '.join(failed)}")


def _run(argv: list[str], environment: dict[str, str]) -> int:
    """Run a bench to its end. A signal is handed on once: the bench ends its processes and drops its databases."""
    with subprocess.Popen(argv, env=environment, start_new_session=True) as child:  # noqa: S603  # a script of ours

        def hand_on(number: int, _frame: object) -> None:
            child.send_signal(number)

        before = {each: signal.signal(each, hand_on) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            return child.wait()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
