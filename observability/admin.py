from django.contrib import admin
from django.template.defaultfilters import truncatechars

from observability.models import AgentInteraction
from workspaces.readonly import RunAdmin

MODEL_CHARACTERS = 20  # with it what matters fits a window of 1280 pixels


@admin.register(AgentInteraction)
class AgentInteractionAdmin(RunAdmin):
    list_display = (
        "created",
        "short_model",
        "owner",
        "latency",
        "cost",
        "correlation",
        "error_code",
        "input_tokens",
        "output_tokens",
        "tier",
    )
    list_filter = ("provider", "model", "tier", "owner_kind", "error_code", "committed")
    search_fields = ("correlation_id", "conversation_id", "plan_id")
    date_hierarchy = "created_at"

    @admin.display(description="model", ordering="model")
    def short_model(self, row: AgentInteraction) -> str:
        return truncatechars(row.model, MODEL_CHARACTERS)

    @admin.display(description="owner", ordering="owner_id")
    def owner(self, row: AgentInteraction) -> str:
        return row.owner

    @admin.display(description="ms", ordering="latency_ms")
    def latency(self, row: AgentInteraction) -> int:
        return row.latency_ms

    @admin.display(description="US$", ordering="estimated_cost")
    def cost(self, row: AgentInteraction) -> str | None:
        return None if row.estimated_cost is None else f"{row.estimated_cost:.6f}"
