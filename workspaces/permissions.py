"""Permissions inside a workspace: deny by default, membership first."""

from __future__ import annotations

from django.conf import settings
from django.db.models import Q

from workspaces.models import Membership, User, Workspace

VIEW_ALL = "capstan_workspaces.view_all"


def may(user: User, permission: str, *, workspace: Workspace | int) -> bool:
    """Whether `user` holds `permission` in `workspace`: one query, so that what was taken away counts at once.

    A permission comes from `CAPSTAN_MEMBER_PERMISSIONS` (what every member may), from the membership's own groups, or
    from the user's permissions and groups of the whole site. Django's rows decide; other permission backends are not
    asked.

    Args:
        user: who asks; a deactivated user may nothing.
        permission: `app_label.codename`.
        workspace: the tenant, or its key. Somebody who is no member may nothing there, superusers included.

    Source: CAP-036.
    """
    membership = Membership.objects.filter(user=user.pk, workspace=workspace, user__is_active=True)
    if permission in settings.CAPSTAN_MEMBER_PERMISSIONS:
        return membership.exists()
    app_label, _, codename = permission.partition(".")

    def granted(path: str) -> Q:
        return Q(**{f"{path}__codename": codename, f"{path}__content_type__app_label": app_label})

    return membership.filter(
        Q(user__is_superuser=True)
        | granted("groups__permissions")
        | granted("user__user_permissions")
        | granted("user__groups__permissions")
    ).exists()


def workspaces_where(user: User, *permissions: str) -> list[int]:
    """Keys of the user's workspaces in which he holds one of the permissions."""
    return [
        workspace.pk
        for workspace in Workspace.objects.of(user)
        if any(may(user, permission, workspace=workspace) for permission in permissions)
    ]
