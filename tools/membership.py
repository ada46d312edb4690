"""Whether a user is an active member of a workspace: asked for every call, so in one prepared statement."""

from __future__ import annotations

from psycopg.types.numeric import Int8

from tools.prepared import Prepared
from workspaces.models import Membership, User

_MEMBER = Prepared(f"""
    SELECT 1 FROM {Membership._meta.db_table} m JOIN {User._meta.db_table} u ON u.id = m.user_id
    WHERE m.user_id = %(user)s AND m.workspace_id = %(workspace)s AND u.is_active
""")  # noqa: S608


def is_member(user_id: int, workspace_id: int) -> bool:
    """Read from the database now (CAP-036)."""
    return _MEMBER.row({"user": Int8(user_id), "workspace": Int8(workspace_id)}) is not None
