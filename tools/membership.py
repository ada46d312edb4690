"""Whether a user is an active member of a workspace: asked for every call, so in one prepared statement."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import ServerBindingCursor

from workspaces.models import Membership, User

_QUESTION = f"""
    SELECT 1 FROM {Membership._meta.db_table} m JOIN {User._meta.db_table} u ON u.id = m.user_id
    WHERE m.user_id = %s AND m.workspace_id = %s AND u.is_active
"""  # noqa: S608


def is_member(user_id: int, workspace_id: int) -> bool:
    """Read from the database now (CAP-036)."""
    connection.ensure_connection()
    raw: Any = connection.connection
    new_cursor: Any = ServerBindingCursor
    with connection.wrap_database_errors, new_cursor(raw) as cursor:
        cursor.execute(_QUESTION, (user_id, workspace_id), prepare=True)
        return cursor.fetchone() is not None
