"""Admins for rows that people read and only services write."""

from __future__ import annotations

from datetime import UTC
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import truncatechars
from django.utils.html import format_html

from workspaces.permissions import VIEW_ALL, workspaces_where

ID_CHARACTERS = 9  # of a correlation id in a list


class ReadOnlyAdmin(admin.ModelAdmin[Any]):
    """A person looks here; rows change through services and query sets.

    `created` and `correlation` are narrow columns for lists, so that what matters fits a window.
    """

    @admin.display(description="created (UTC)", ordering="created_at")
    def created(self, row: Any) -> str:
        return f"{row.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"

    @admin.display(description="correlation id", ordering="correlation_id")
    def correlation(self, row: Any) -> str:
        """Its beginning; the link lists all rows that share it."""
        whole = row.correlation_id
        return format_html('<a href="?q={}" title="{}">{}</a>', whole, whole, truncatechars(whole, ID_CHARACTERS))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class ReadOnlyInline(admin.TabularInline[Any, Any]):
    """The same for rows that belong to the one shown. `fields` may name methods; nothing of them can be typed over."""

    extra = 0
    can_delete = False

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.fields or ()

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class RunAdmin(ReadOnlyAdmin):
    """Rows of runs: one's own, and all of the workspaces where one holds `view_all`, as at every other door.

    Args:
        workspace_path: lookup from a row to its workspace.
        user_path: lookup from a row to the user whose run it belongs to; empty: it is nobody's own.
    """

    workspace_path: ClassVar[str] = "workspace"
    user_path: ClassVar[str] = "user"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        user = request.user
        assert user.is_authenticated, "the admin asks for a sign-in first"
        seen = Q(**{f"{self.workspace_path}__in": workspaces_where(user, VIEW_ALL)})
        if self.user_path:
            member = {f"{self.workspace_path}__in": user.memberships.values("workspace")}
            seen |= Q(**{self.user_path: user.pk}, **member)
        return super().get_queryset(request).filter(seen)
