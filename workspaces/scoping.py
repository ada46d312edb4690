"""The scoping manager: rows of one workspace, or of all that a user belongs to."""

from __future__ import annotations

from typing import Self, TypeVar

from django.db import models

from workspaces.models import User, Workspace

M = TypeVar("M", bound=models.Model)


class ScopedQuerySet(models.QuerySet[M]):
    """For models with a `workspace` foreign key."""

    def for_workspace(self, workspace: Workspace | int) -> Self:
        """Rows of one workspace."""
        return self.filter(workspace=workspace)

    def visible_to(self, user: User) -> Self:
        """Rows of the workspaces that `user` belongs to; none for a user who was deactivated."""
        if not user.is_active:
            return self.none()
        return self.filter(workspace__memberships__user=user)
