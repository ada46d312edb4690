from django.contrib import admin

from events.models import Event
from workspaces.readonly import RunAdmin


@admin.register(Event)
class EventAdmin(RunAdmin):
    workspace_path = "stream__workspace"
    user_path = ""
    list_display = ("created_at", "stream", "seq", "name", "correlation_id")
    list_filter = ("name",)
    search_fields = ("correlation_id", "stream__id")
