from django.contrib import admin

from tools.models import ToolExecution
from workspaces.readonly import ReadOnlyAdmin


@admin.register(ToolExecution)
class ToolExecutionAdmin(ReadOnlyAdmin):
    list_display = ("id", "created_at", "tool_name", "effect", "status", "user", "workspace", "duration_ms", "cached")
    list_filter = ("status", "effect", "mode", "cached", "workspace")
    search_fields = ("tool_name", "correlation_id", "conversation_id", "plan_id", "error")
    list_select_related = ("user", "workspace")
    date_hierarchy = "created_at"
