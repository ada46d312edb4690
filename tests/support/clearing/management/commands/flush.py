"""`flush` between tests: Django's own, but for the time it takes.

Django truncates every table and then writes the content types and permissions anew, which takes the server and this
process longer than most tests. Here rows are deleted, and what `post_migrate` had written is left where it stands.
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.core.management.commands import flush
from django.db import connections, transaction

ANEW_EVERY = 100  # flushes; deleted rows take room until their table is truncated

_kept: dict[str, dict[str, str]] = {}  # by database: digests of the tables that hold rows after Django's flush
_flushes = 0


class Command(flush.Command):
    def handle(self, **options: Any) -> None:
        global _flushes
        _flushes += 1
        name = str(connections[options["database"]].settings_dict["NAME"])
        if _flushes % ANEW_EVERY == 0 or name not in _kept or not _deleted(options["database"], _kept[name]):
            super().handle(**options)
            _kept[name] = _digests(options["database"])


def _tables(database: str) -> list[str]:
    return connections[database].introspection.django_table_names(only_existing=True, include_views=False)


def _digests(database: str) -> dict[str, str]:
    with connections[database].cursor() as cursor:
        return {table: digest for table in _tables(database) if (digest := _digest(cursor, table))}


def _digest(cursor: Any, table: str) -> str:
    """Of a table's rows; empty when there are none."""
    cursor.execute(f'SELECT t::text FROM "{table}" t ORDER BY 1')
    rows = [row for (row,) in cursor.fetchall()]
    return hashlib.sha256("\0".join(rows).encode()).hexdigest() if rows else ""


def _deleted(database: str, kept: dict[str, str]) -> bool:
    """Delete all rows but those of the kept tables; False when a test changed these."""
    others = [f'"{table}"' for table in _tables(database) if table not in kept]
    with transaction.atomic(using=database), connections[database].cursor() as cursor:
        # As TRUNCATE does: wait for what a killed process is still committing.
        cursor.execute(f"LOCK TABLE {', '.join(others)} IN EXCLUSIVE MODE")
        cursor.execute("; ".join(f"DELETE FROM {table}" for table in others))
        return all(_digest(cursor, table) == digest for table, digest in kept.items())
