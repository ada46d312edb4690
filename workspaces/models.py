"""Who may see what: users, workspaces (the tenants) and membership.

Every scoped row carries a workspace; `WorkspaceQuerySet.for_workspace` is how a read is scoped. The key of a
workspace is the reference architecture's `scope_id`.
"""

from __future__ import annotations

from typing import Self

from django.contrib.auth.models import AbstractUser, Group
from django.db import models


class User(AbstractUser):
    """A person, or a token's owner."""

    class Meta(AbstractUser.Meta):
        swappable = "AUTH_USER_MODEL"


class WorkspaceQuerySet(models.QuerySet["Workspace"]):
    def of(self, user: User) -> Self:
        """The workspaces that `user` belongs to."""
        return self.filter(memberships__user=user)


class Workspace(models.Model):
    """One tenant. `scope_id` names it in snapshots and tools."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = WorkspaceQuerySet.as_manager()

    class Meta:
        ordering = ("slug",)
        permissions = (("view_all", "Can see everybody's runs in the workspace"),)

    def __str__(self) -> str:
        return self.slug

    @property
    def scope_id(self) -> str:
        return str(self.pk)


class Membership(models.Model):
    """A user in a workspace; `groups` grant permissions in this workspace alone."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="memberships")
    groups = models.ManyToManyField(Group, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "workspace"), name="one_membership"),)

    def __str__(self) -> str:
        return f"{self.user} in {self.workspace}"
