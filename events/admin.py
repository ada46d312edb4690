from django.contrib import admin

from events.models import Event
from workspaces.readonly import ReadOnlyAdmin


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("created_at", "stream", "seq", "name", "correlation_id")
    list_filter = ("name",)
    search_fields = ("correlation_id", "stream__id")
