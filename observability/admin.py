from decimal import Decimal

from django.contrib import admin
from django.template.defaultfilters import truncatechars

from observability.models import AgentInteraction
from workspaces.readonly import RunAdmin

MODEL_CHARACTERS = 24  # with it all columns fit a window of 1280 pixels


@admin.register(AgentInteraction)
class AgentInteractionAdmin(RunAdmin):
    list_display = (
        "created_at",
        "short_model",
        "owner",
        "latency",
        "cost",
        "correlation_id",
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
    def cost(self, row: AgentInteraction) -> Decimal | None:
        return row.estimated_cost
