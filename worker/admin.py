"""A plan's steps in the admin, here because what their model gets is put together by their runner."""

from django.contrib import admin
from django.template.loader import render_to_string

from plan.models import PlanStep, StepKind, StepMessage
from worker.preview import preview_of
from workspaces.errors import CapstanError
from workspaces.readonly import ReadOnlyInline, RunAdmin


class StepMessageInline(ReadOnlyInline):
    model = StepMessage
    fk_name = "step"
    verbose_name_plural = "journal"
    fields = ("round", "position", "role", "text", "tool_name", "is_error", "model", "stop_reason", "created_at")
    ordering = ("round", "position")


@admin.register(PlanStep)
class PlanStepAdmin(RunAdmin):
    """A step with its journal, and what its model gets."""

    workspace_path = "plan__workspace"
    user_path = "plan__owner"
    list_display = ("id", "plan", "order", "key", "kind", "status", "model_used", "ended_at")
    list_filter = ("status", "kind")
    search_fields = ("=id", "=plan__id", "key")
    list_select_related = ("plan",)
    inlines = (StepMessageInline,)
    readonly_fields = ("prompt_preview",)

    @admin.display(description="What the model gets")
    def prompt_preview(self, step: PlanStep) -> str:
        """Layer by layer, with estimated tokens and what the provider may keep in its cache."""
        if step.kind == StepKind.DATA:
            return "A data step asks no model."
        try:
            parts = preview_of(step)
        except CapstanError as exc:
            return f"There is no preview: {exc}"
        return render_to_string("chat/admin_preview.html", {"parts": parts, "tokens": sum(p.tokens for p in parts)})
