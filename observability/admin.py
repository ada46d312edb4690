from django.contrib import admin

from observability.models import AgentInteraction
from workspaces.readonly import RunAdmin


@admin.register(AgentInteraction)
class AgentInteractionAdmin(RunAdmin):
    list_display = (
        "created_at",
        "model",
        "tier",
        "owner_kind",
        "owner_id",
        "input_tokens",
        "output_tokens",
        "latency_ms",
        "estimated_cost",
        "error_code",
        "correlation_id",
    )
    list_filter = ("provider", "model", "tier", "owner_kind", "error_code", "committed")
    search_fields = ("correlation_id", "conversation_id", "plan_id")
    date_hierarchy = "created_at"
