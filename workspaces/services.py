"""Writes: workspaces and their members."""

from __future__ import annotations

from django.db import transaction

from workspaces.models import Membership, User, Workspace


@transaction.atomic
def ensure_workspace(*, slug: str, name: str, member: User | None = None) -> Workspace:
    """Create the workspace, and its member, where they are missing.

    Args:
        slug: unique, URL-safe.
        name: what people read.
        member: a user to add; nobody when None.
    """
    workspace, _ = Workspace.objects.get_or_create(slug=slug, defaults={"name": name})
    if member is not None:
        Membership.objects.get_or_create(user=member, workspace=workspace)
    return workspace
