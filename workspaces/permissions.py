"""Permissions inside a workspace: deny by default, membership first."""

from __future__ import annotations

from django.db.models import Q

from workspaces.models import Membership, User, Workspace


def may(user: User, permission: str, *, workspace: Workspace | int) -> bool:
    """Whether `user` holds `permission` in `workspace`, read from the database now.

    Args:
        user: who asks; a deactivated user may nothing.
        permission: `app_label.codename`.
        workspace: the tenant, or its key. Somebody who is no member may nothing there, superusers included.

    Source: CAP-036.
    """
    if not user.is_active:
        return False
    membership = Membership.objects.filter(user=user, workspace=workspace, user__is_active=True)
    if user.is_superuser or user.has_perm(permission):
        return membership.exists()
    app_label, _, codename = permission.partition(".")
    granted = Q(groups__permissions__codename=codename, groups__permissions__content_type__app_label=app_label)
    return membership.filter(granted).exists()
