"""The catalogue in the admin: people look; change sets are decided through the services."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from catalog import services
from catalog.errors import CatalogError
from catalog.models import ChangeOp, ChangeSet, Element, ElementNote, Relation, Repository, Scan
from workspaces.models import User
from workspaces.readonly import ReadOnlyAdmin


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
class ElementAdmin(ReadOnlyAdmin):
    list_display = ("key", "kind", "name", "repository", "workspace", "path", "line")
    list_filter = ("workspace", "repository", "kind")
    list_select_related = ("repository", "workspace")
    search_fields = ("key", "name", "summary")
    inlines = (OutgoingInline,)
    show_full_result_count = False


@admin.register(Repository)
class RepositoryAdmin(ReadOnlyAdmin):
    list_display = ("label", "workspace", "revision", "created_at")
    list_filter = ("workspace",)
    list_select_related = ("workspace",)


@admin.register(Scan)
class ScanAdmin(ReadOnlyAdmin):
    list_display = ("id", "repository", "workspace", "files", "started_at", "ended_at", "correlation_id")
    list_filter = ("workspace", "repository")
    list_select_related = ("repository", "workspace")
    search_fields = ("correlation_id",)


@admin.register(ElementNote)
class ElementNoteAdmin(ReadOnlyAdmin):
    list_display = ("key", "repository", "workspace", "author", "created_at")
    list_filter = ("workspace", "repository")
    list_select_related = ("repository", "workspace", "author")
    search_fields = ("key", "text")


@admin.register(ChangeOp)
class ChangeOpAdmin(ReadOnlyAdmin):
    list_display = ("change_set", "seq", "op", "key")
    list_filter = ("op",)
    list_select_related = ("change_set",)
    search_fields = ("key", "change_set__id")
    show_full_result_count = False


@admin.register(ChangeSet)
class ChangeSetAdmin(ReadOnlyAdmin):
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
    )
    list_filter = ("workspace", "status", "origin", "repository")
    list_select_related = ("repository", "workspace")
    search_fields = ("title", "correlation_id")
    actions = ("apply", "reject")

    def has_decide_permission(self, request: HttpRequest) -> bool:
        """Whether this person may apply or reject; asked by both actions."""
        return request.user.has_perm("capstan_catalog.decide_changeset")

    @admin.action(description="Apply selected change sets", permissions=["decide"])
    def apply(self, request: HttpRequest, chosen: QuerySet[ChangeSet]) -> None:
        def decide(row: ChangeSet, by: User) -> ChangeSet:
            return services.apply_changeset(change_set_id=row.pk, workspace=row.workspace, by=by, now=timezone.now())

        self._decide(request, chosen, decide)

    @admin.action(description="Reject selected change sets", permissions=["decide"])
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
            try:
                decided = decide(row, request.user)
            except CatalogError as exc:
                self.message_user(request, f"{row}: {exc}", messages.ERROR)
            else:
                self.message_user(request, f"{decided}: {decided.status}")
