"""The version of each scope: what makes a cached snapshot stale (CAP-038)."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection, models

from workspaces.models import Workspace


class ScopeVersionQuerySet(models.QuerySet["ScopeVersion"]):
    def bump(self, workspace_ids: Iterable[int]) -> None:
        """Raise the versions, in key order so that two writers never wait for each other in a ring.

        Takes row locks until the transaction ends: call it late in a unit (design § 5).
        """
        with connection.cursor() as cursor:
            for workspace_id in sorted(set(workspace_ids)):
                cursor.execute(
                    f"INSERT INTO {ScopeVersion._meta.db_table} (workspace_id, version) VALUES (%s, 1) "  # noqa: S608
                    f"ON CONFLICT (workspace_id) DO UPDATE SET version = {ScopeVersion._meta.db_table}.version + 1",
                    [workspace_id],
                )

    def current(self, workspace_id: int) -> int:
        """The version now; 0 before the first write."""
        return self.filter(pk=workspace_id).values_list("version", flat=True).first() or 0


class ScopeVersion(models.Model):
    """How often the domain rows of a workspace have changed."""

    workspace = models.OneToOneField(Workspace, on_delete=models.CASCADE, primary_key=True, related_name="+")
    version = models.BigIntegerField(default=0)

    objects = ScopeVersionQuerySet.as_manager()

    def __str__(self) -> str:
        return f"scope {self.pk} at {self.version}"
