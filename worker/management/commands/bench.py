"""Runs the benches of `bench/` on the servers of this state folder, one after another (`make bench`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

HELPERS = {"plan_step", "plan_worker", "chain_worker"}


class Command(BaseCommand):
    help = "Measure Capstan beside its peers and floors, in one run; a bench's name runs that one alone."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("bench", nargs="?", help="the name of one, such as plans")
        parser.add_argument("arguments", nargs="*", help="handed to that one")

    def handle(self, *, bench: str | None, arguments: list[str], **_options: object) -> None:
        folder = Path(settings.BASE_DIR) / "bench"
        known = sorted(path.stem for path in folder.glob("*.py") if path.stem not in HELPERS)
        if bench is not None and bench not in known:
            raise CommandError(f"no bench {bench!r}; there are {', '.join(known)}", returncode=2)
        parts = connection.settings_dict
        url = f"postgres://{parts['USER']}@/{parts['NAME']}?host={parts['HOST']}"
        environment = {
            "DATABASE_URL": os.environ.get("DATABASE_URL") or url,
            "REDIS_URL": settings.REDIS_URL,
            "SECRET_KEY": settings.SECRET_KEY,
        }
        failed = []
        for name in [bench] if bench else known:
            self.stdout.write(f"== {name}")
            argv = [sys.executable, str(folder / f"{name}.py"), *arguments]
            if subprocess.run(argv, env={**os.environ, **environment}, check=False).returncode:  # noqa: S603
                failed.append(name)
        if failed:
            raise CommandError(f"failed: {', '.join(failed)}")
