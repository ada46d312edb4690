"""Statements for migrations that change indexes beside running work: no lock that a reader or writer waits for.

They stand in a `RunSQL` of a migration with `atomic = False`, the new index before the old one goes. One that was cut
off is run again from its start: what it left, an index that PostgreSQL calls invalid included, is made anew.
"""

from __future__ import annotations


def made(name: str, on: str) -> list[str]:
    """Make an index.

    Args:
        on: what follows ON, such as `"table" ("column")`.
    """
    return [*dropped(name), f'CREATE INDEX CONCURRENTLY "{name}" ON {on}']


def dropped(*names: str) -> list[str]:
    """Drop indexes."""
    return [f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"' for name in names]


def replaced(name: str, on: str) -> list[str]:
    """Put an index into the place of another one of its name."""
    new = f"{name}_new"
    return [*made(new, on), *dropped(name), f'ALTER INDEX "{new}" RENAME TO "{name}"']
