"""`manage.py` with one clear line, and exit code 2, where the environment is what is wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import OperationalError

from config import collector
from config.errors import StartRefused
from workspaces.errors import ConfigurationError

SHOWS_ALL = ("2", "3")  # of --verbosity
NO_DATABASE = (
    "No PostgreSQL runs on the state folder {state}, and DATABASE_URL is not set: start Capstan with `make run`, "
    "or set DATABASE_URL."
)


def main(argv: Sequence[str]) -> int:
    """Run one management command.

    Returns:
        The exit code: 2 for a wrong environment, else the command's own.
    """
    try:
        with collector.paused():
            quieten(argv)
            if argv[1:2] != ["runserver"]:  # which sets Django up itself, again after each change
                django.setup()
        execute_from_command_line(list(argv))
    except ConfigurationError as exc:
        return _refuse(f"{exc.details.get('setting')}: {exc.details.get('hint')}")
    except StartRefused as exc:
        return _refuse(exc.reason)
    except OperationalError:
        if settings.GIVEN_SERVERS.database_url or settings.STATE.in_use():
            raise
        return _refuse(NO_DATABASE.format(state=settings.STATE_DIR))
    return 0


def quieten(argv: Sequence[str]) -> None:
    """Log from WARNING on, so that a command's result is not buried; `--verbosity 2` shows the rest.

    A development server's log is its result.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("-v", "--verbosity", default="1")
    chosen, _ = options.parse_known_args(list(argv[2:]))
    if chosen.verbosity not in SHOWS_ALL and argv[1:2] != ["runserver"]:
        settings.LOGGING["handlers"]["console"]["level"] = "WARNING"


def _refuse(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 2
