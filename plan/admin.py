"""Plans in the admin: people look, cancel, retry and adapt; rows change through services."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import truncatechars
from django.utils import timezone
from django.utils.html import format_html_join

from plan import steering
from plan.adapt_admin import AdaptableAdmin
from plan.errors import PlanConflict
from plan.models import ExecutionPlan, PlanChange, PlanStep
from tools.runs import RunStatus
from workspaces.permissions import workspaces_where
from workspaces.readonly import ReadOnlyInline, RunAdmin


class DeadLetterFilter(admin.SimpleListFilter):
    """Plans that recovery gave up."""

    title = "dead letters"
    parameter_name = "dead"

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Given up after too many attempts")]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[ExecutionPlan]) -> QuerySet[ExecutionPlan]:
        if self.value() != "yes":
            return queryset
        return queryset.filter(status=RunStatus.FAILED, error__contains=steering.SPENT)


class PlanStepInline(ReadOnlyInline):
    model = PlanStep
    fk_name = "plan"
    show_change_link = True
    fields = (
        "order",
        "key",
        "kind",
        "action",
        "status",
        "llm_synthesis",
        "error",
        "model_used",
        "started_at",
        "ended_at",
    )
    ordering = ("order",)


class _Audit:
    """What a change was about, before and after."""

    @admin.display(description="before")
    def was(self, change: PlanChange) -> str:
        return _side(change.before, change.after)

    @admin.display(description="after")
    def became(self, change: PlanChange) -> str:
        return _side(change.after, change.before)


def _side(shown: Any, other: Any) -> str:
    """One side of a change: of a step that stays, its key and what differs."""
    if isinstance(shown, list):
        return _plain(shown)
    if not isinstance(shown, dict):
        return "—"
    before = other if isinstance(other, dict) else {}
    lines = ((name, _plain(value)) for name, value in shown.items() if name == "key" or value != before.get(name))
    return format_html_join("", "<div><b>{}</b> {}</div>", lines)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class PlanChangeInline(_Audit, ReadOnlyInline):
    model = PlanChange
    fk_name = "plan"
    fields = ("created_at", "by", "by_step", "action", "was", "became")
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[PlanChange]:
        return super().get_queryset(request).select_related("by", "by_step")


@admin.register(PlanChange)
class PlanChangeAdmin(_Audit, RunAdmin):
    workspace_path = "plan__workspace"
    user_path = "plan__owner"
    list_display = ("created", "plan", "action", "by", "by_step", "was", "became")
    list_filter = ("action",)
    search_fields = ("=plan__id", "by__username")
    list_select_related = ("plan", "by", "by_step")
    fields = ("created_at", "plan", "by", "by_step", "action", "was", "became")
    readonly_fields = ("was", "became")


GOAL_CHARACTERS = 50  # in the list
CANCEL, RETRY = "capstan_plan.cancel_executionplan", "capstan_plan.retry_executionplan"


@admin.register(ExecutionPlan)
class ExecutionPlanAdmin(AdaptableAdmin):
    user_path = "owner"
    list_display = ("id", "status", "short_goal", "owner", "created", "correlation", "ended_at", "workspace")
    list_filter = ("status", DeadLetterFilter, "template", "workspace")
    search_fields = ("goal", "correlation_id", "conversation_id")
    date_hierarchy = "created_at"
    list_select_related = ("owner", "workspace")
    inlines = (PlanStepInline, PlanChangeInline)
    actions = ("cancel", "retry")

    @admin.display(description="goal", ordering="goal")
    def short_goal(self, plan: ExecutionPlan) -> str:
        return truncatechars(plan.goal, GOAL_CHARACTERS)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return bool(self._where(request, CANCEL))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return bool(self._where(request, RETRY))

    def _where(self, request: HttpRequest, permission: str) -> list[int]:
        user = request.user
        return workspaces_where(user, permission) if user.is_authenticated else []

    @admin.action(description="Cancel selected plans", permissions=["cancel"])
    def cancel(self, request: HttpRequest, plans: QuerySet[ExecutionPlan]) -> None:
        asked = 0
        for pk in plans.filter(workspace__in=self._where(request, CANCEL)).values_list("pk", flat=True):
            was = ExecutionPlan.objects.values_list("ended_at", flat=True).get(pk=pk)
            steering.cancel_plan(plan_id=pk)
            asked += was is None
        self.message_user(request, f"{asked} plans told to stop; the rest had ended.")

    @admin.action(description="Retry selected plans from where they failed", permissions=["retry"])
    def retry(self, request: HttpRequest, plans: QuerySet[ExecutionPlan]) -> None:
        for plan in plans.filter(workspace__in=self._where(request, RETRY)).select_related("owner"):
            try:
                new = steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())
            except PlanConflict as exc:
                self.message_user(request, f"Plan {plan.pk}: {exc}", level=messages.WARNING)
            else:
                self.message_user(request, f"Plan {plan.pk} goes on as plan {new.pk}.")
