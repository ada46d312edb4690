"""The catalogue in the admin: people look; change sets are decided through the services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from catalog import services
from catalog.errors import CatalogError
from catalog.models import ChangeOp, ChangeSet, Element, ElementNote, Relation, Repository, Scan
from workspaces.models import User
from workspaces.permissions import may
from workspaces.readonly import ReadOnlyAdmin

OF_WORKSPACE = ("workspace", admin.RelatedOnlyFieldListFilter)  # a filter names none of another's either
OF_REPOSITORY = ("repository", admin.RelatedOnlyFieldListFilter)


class ScopedReadOnlyAdmin(ReadOnlyAdmin):
    """Shows the rows of the workspaces that a person belongs to; no permission and no rank shows another's (CAP-036).

    Args:
        workspace_path: lookup from a row to its workspace.
    """

    workspace_path = "workspace"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        mine = {f"{self.workspace_path}__memberships__user": request.user.pk}
        return super().get_queryset(request).filter(**mine)


class OutgoingInline(admin.TabularInline[Relation, Element]):
    """What an element points at; a long list stays on its own page."""

    model = Relation
    fk_name = "source"
    fields = readonly_fields = ("kind", "target")
    extra = 0
    max_num = 0
    can_delete = False
    verbose_name_plural = "outgoing relations"


@admin.register(Element)
class ElementAdmin(ScopedReadOnlyAdmin):
    list_display = ("key", "kind", "name", "repository", "workspace", "path", "line")
    list_filter = (OF_WORKSPACE, OF_REPOSITORY, "kind")
    list_select_related = ("repository", "workspace")
    search_fields = ("key", "name", "summary")
    inlines = (OutgoingInline,)
    show_full_result_count = False


@admin.register(Repository)
class RepositoryAdmin(ScopedReadOnlyAdmin):
    list_display = ("label", "workspace", "revision", "created_at")
    list_filter = (OF_WORKSPACE,)
    list_select_related = ("workspace",)


@admin.register(Scan)
class ScanAdmin(ScopedReadOnlyAdmin):
    list_display = ("id", "repository", "workspace", "files", "started_at", "ended_at", "correlation_id")
    list_filter = (OF_WORKSPACE, OF_REPOSITORY)
    list_select_related = ("repository", "workspace")
    search_fields = ("correlation_id",)


@admin.register(ElementNote)
class ElementNoteAdmin(ScopedReadOnlyAdmin):
    list_display = ("key", "repository", "workspace", "author", "created_at")
    list_filter = (OF_WORKSPACE, OF_REPOSITORY)
    list_select_related = ("repository", "workspace", "author")
    search_fields = ("key", "text")


@admin.register(ChangeOp)
class ChangeOpAdmin(ScopedReadOnlyAdmin):
    workspace_path = "change_set__workspace"
    fields = ("change_set", "seq", "op", "key", "difference")
    readonly_fields = ("difference",)
    list_display = ("change_set", "seq", "op", "key")
    list_filter = ("op",)
    list_select_related = ("change_set",)
    search_fields = ("key", "change_set__id")
    show_full_result_count = False

    @admin.display(description="what changes")
    def difference(self, row: ChangeOp) -> str:
        """Each field that differs, before and after."""
        before, after = row.before or {}, row.after or {}
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        lines = ((name, before.get(name, "—"), after.get(name, "—")) for name in changed)
        return format_html_join("", "<p><b>{}</b><br>{}<br>→ {}</p>", lines)


@admin.register(ChangeSet)
class ChangeSetAdmin(ScopedReadOnlyAdmin):
    list_display = (
        "id",
        "title",
        "repository",
        "workspace",
        "status",
        "origin",
        "added",
        "updated",
        "deleted",
        "created_at",
        "operations",
    )
    list_filter = (OF_WORKSPACE, "status", "origin", OF_REPOSITORY)
    list_select_related = ("repository", "workspace")
    search_fields = ("title", "correlation_id")
    readonly_fields = ("operations",)
    actions = ("apply", "reject")

    @admin.display(description="operations")
    def operations(self, row: ChangeSet) -> str:
        """A link to the list of its operations."""
        url = reverse("admin:capstan_catalog_changeop_changelist")
        return format_html('<a href="{}?change_set__id__exact={}">show</a>', url, row.pk)

    @admin.action(description="Apply selected change sets")
    def apply(self, request: HttpRequest, chosen: QuerySet[ChangeSet]) -> None:
        def decide(row: ChangeSet, by: User) -> ChangeSet:
            return services.apply_changeset(change_set_id=row.pk, workspace=row.workspace, by=by, now=timezone.now())

        self._decide(request, chosen, decide)

    @admin.action(description="Reject selected change sets")
    def reject(self, request: HttpRequest, chosen: QuerySet[ChangeSet]) -> None:
        def decide(row: ChangeSet, by: User) -> ChangeSet:
            return services.reject_changeset(
                change_set_id=row.pk, workspace=row.workspace, by=by, note="", now=timezone.now()
            )

        self._decide(request, chosen, decide)

    def _decide(
        self, request: HttpRequest, chosen: QuerySet[ChangeSet], decide: Callable[[ChangeSet, User], ChangeSet]
    ) -> None:
        assert isinstance(request.user, User)
        for row in chosen.select_related("workspace").order_by("pk"):
            if not may(request.user, "capstan_catalog.decide_changeset", workspace=row.workspace):
                self.message_user(request, f"{row}: deciding it needs the permission decide_changeset.", messages.ERROR)
                continue
            try:
                decided = decide(row, request.user)
            except CatalogError as exc:
                self.message_user(request, f"{row}: {exc}", messages.ERROR)
            else:
                self.message_user(request, f"{decided}: {decided.status}")
