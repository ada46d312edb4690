"""What a database needs before anybody can sign in: its tables, the workspace `demo`, the first user."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.migrations.executor import MigrationExecutor

from workspaces.models import User
from workspaces.services import ensure_workspace

FIRST_USER = "admin"
WORKSPACE = ("demo", "Demo")
LOCK_POLL_S = 0.2
MIGRATION_LOCK = 0x43415053  # any number of ours: two starts on one database migrate one after the other


def migrate() -> bool:
    """Bring the tables up to date.

    Returns:
        Whether there was something to do.
    """
    with _migration_lock():
        executor = MigrationExecutor(connection)
        if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
            return False
        call_command("migrate", interactive=False, verbosity=0)
    return True


def create_first_user(*, password_file: Path) -> str | None:
    """Create `admin` with a generated password in a database without users, and the workspace `demo`.

    Args:
        password_file: keeps the password, readable by its owner alone.

    Returns:
        The password; None when there were users already.
    """
    if User.objects.exists():
        return None
    password = secrets.token_urlsafe(15)
    try:
        with transaction.atomic():
            user = User.objects.create_superuser(FIRST_USER, password=password)
            ensure_workspace(slug=WORKSPACE[0], name=WORKSPACE[1], member=user)
            _write_secret(password_file, password)  # before the commit: a password nobody kept locks everybody out
    except IntegrityError:
        return None  # another start on this database created it first
    return password


@contextmanager
def _migration_lock() -> Iterator[None]:
    with connection.cursor() as cursor:
        # No statement waits: an index that is made concurrently would wait for it in turn.
        while not _lock_taken(cursor):
            time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])


def _lock_taken(cursor: CursorWrapper) -> bool:
    cursor.execute("SELECT pg_try_advisory_lock(%s)", [MIGRATION_LOCK])
    (taken,) = cursor.fetchone()
    return bool(taken)


def _write_secret(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secret}\n")
