"""Who calls, at doors where a name, a token or a header says it."""

from __future__ import annotations

from django.core.management.base import CommandError

from workspaces.models import User, Workspace


def caller_named(username: str, workspace: str) -> tuple[User, Workspace]:
    """The active user and the workspace that a command line names.

    Args:
        workspace: a slug; empty: the user's only one.

    Raises:
        CommandError: there is no such user or workspace, or it is not clear which.
    """
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise CommandError(f"there is no active user {username!r}")
    found = chosen_workspace(user, workspace)
    if found is None:
        own = ", ".join(Workspace.objects.of(user).values_list("slug", flat=True))
        raise CommandError(f"say which workspace of {username!r} with --workspace: {own or 'there is none'}")
    return user, found


def chosen_workspace(user: User, wanted: str) -> Workspace | None:
    """The user's workspace of this slug or key, or the only one; None when that names none."""
    own = Workspace.objects.of(user)
    if not wanted:
        two = list(own[:2])
        return two[0] if len(two) == 1 else None
    by_slug = own.filter(slug=wanted).first()
    return by_slug or (own.filter(pk=int(wanted)).first() if wanted.isdecimal() and len(wanted) < 10 else None)
