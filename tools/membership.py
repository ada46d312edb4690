"""Whether a user is an active member of a workspace: asked for every call, so in one prepared statement."""

from __future__ import annotations

from psycopg.types.numeric import Int8

from tools.prepared import Prepared
from workspaces.models import Membership, User

IS_MEMBER = f"""EXISTS (
    SELECT 1 FROM {Membership._meta.db_table} m JOIN {User._meta.db_table} u ON u.id = m.user_id
    WHERE m.user_id = %(u)s AND m.workspace_id = %(w)s AND u.is_active)"""  # noqa: S608  # parameters: user, workspace
_MEMBER = Prepared(f"SELECT {IS_MEMBER}")


def is_member(user_id: int, workspace_id: int) -> bool:
    """Read from the database now (CAP-036)."""
    row = _MEMBER.row({"u": Int8(user_id), "w": Int8(workspace_id)})
    return row is not None and bool(row[0])
