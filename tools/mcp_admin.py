"""MCP servers and their tools: people name servers, look at what they offer, and approve it tool by tool."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import ForeignKey, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from tools import mcp_tools
from tools.egress import check_url, words_of
from tools.errors import EgressRefused, RemoteToolError
from tools.mcp_models import McpServer, McpTool
from tools.settings import tool_settings
from workspaces.models import Workspace


class McpServerForm(forms.ModelForm[McpServer]):
    class Meta:
        model = McpServer
        fields = (
            "workspace",
            "name",
            "transport",
            "url",
            "command",
            "permission",
            "timeout_s",
            "result_characters",
            "enabled",
        )
        help_texts = {"command": "For stdio: a name in MCP_COMMANDS, in .env."}

    def clean(self) -> dict[str, Any]:
        """Refuse an address the egress policy refuses, and a command that settings do not name."""
        given = super().clean() or {}
        settings = tool_settings()
        if given.get("transport") == McpServer.Transport.STDIO:
            if given.get("command") not in settings.mcp_commands:
                named = ", ".join(sorted(settings.mcp_commands)) or "none"
                raise ValidationError({"command": f"MCP_COMMANDS in .env lists no such command. Listed: {named}."})
            if given.get("url"):
                raise ValidationError({"url": "A server that is started as a command has no URL: leave it empty."})
        else:
            if given.get("command"):
                raise ValidationError({"command": "A server that is reached by a URL has no command: leave it empty."})
            if not given.get("url"):
                if "url" not in self.errors:
                    raise ValidationError({"url": "Give the URL at which the server answers."})
                return given
            try:
                check_url(given["url"], private_networks=settings.mcp_private_networks)
            except EgressRefused as exc:
                raise ValidationError({"url": words_of(exc)}) from exc
        return given


def _why(exc: Exception) -> str:
    if isinstance(exc, EgressRefused):
        return words_of(exc)
    if isinstance(exc, RemoteToolError):
        return str(exc.details.get("reason") or exc.details.get("message") or "it answered with an error.")
    return "it did not answer in time."


def _workspaces(request: HttpRequest) -> QuerySet[Workspace]:
    return Workspace.objects.of(request.user) if request.user.is_authenticated else Workspace.objects.none()


@admin.register(McpServer)
class McpServerAdmin(admin.ModelAdmin[McpServer]):
    form = McpServerForm
    list_display = ("name", "workspace", "transport", "url", "command", "enabled", "version")
    list_filter = ("enabled", "transport", "workspace")
    list_select_related = ("workspace",)
    actions = ("ask_for_tools",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[McpServer]:
        return McpServer.objects.filter(workspace__in=_workspaces(request))

    def formfield_for_foreignkey(self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "workspace":
            kwargs["queryset"] = _workspaces(request)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: McpServer, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        McpServer.objects.changed(obj.pk)

    @admin.action(description="Ask the selected servers for their tools", permissions=["change"])
    def ask_for_tools(self, request: HttpRequest, chosen: QuerySet[McpServer]) -> None:
        for server in chosen:
            try:
                changed = mcp_tools.refresh(server=server, now=timezone.now())
            except (RemoteToolError, EgressRefused, TimeoutError) as exc:
                self.message_user(request, f"{server.name} could not be asked: {_why(exc)}", messages.ERROR)
                continue
            self.message_user(request, f"{server.name}: {len(changed)} tools are new or changed; approve them there.")


@admin.register(McpTool)
class McpToolAdmin(admin.ModelAdmin[McpTool]):
    list_display = ("name", "server", "effect", "approval", "callable_now", "changed", "approved_by", "seen_at")
    list_filter = ("server",)
    list_select_related = ("server", "approved_by")
    fields = (
        "server",
        "name",
        "effect",
        "approval",
        "offered",
        "description",
        "input_schema",
        "approved_by",
        "seen_at",
    )
    readonly_fields = ("server", "name", "offered", "description", "input_schema", "approved_by", "seen_at")
    actions = ("approve", "withdraw")

    @admin.display(boolean=True, description="Callable")
    def callable_now(self, row: McpTool) -> bool:
        return row.callable_now

    @admin.display(boolean=True, description="Changed since")
    def changed(self, row: McpTool) -> bool:
        return bool(row.approved_digest) and row.approved_digest != row.digest

    def get_queryset(self, request: HttpRequest) -> QuerySet[McpTool]:
        return McpTool.objects.filter(server__workspace__in=_workspaces(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: McpTool, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        McpServer.objects.changed(obj.server_id)

    @admin.action(description="Approve what the selected tools offer now", permissions=["change"])
    def approve(self, request: HttpRequest, chosen: QuerySet[McpTool]) -> None:
        assert request.user.is_authenticated
        approved = mcp_tools.approve(tools=list(chosen), user=request.user)
        self.message_user(request, f"{approved} approved.")

    @admin.action(description="Let the selected tools be called no more", permissions=["change"])
    def withdraw(self, request: HttpRequest, chosen: QuerySet[McpTool]) -> None:
        self.message_user(request, f"{mcp_tools.withdraw(tools=list(chosen))} withdrawn.")
