from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import truncatechars
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tools import mcp_admin, services
from tools.approvals import DECIDE
from tools.errors import ToolsError
from tools.models import Approval, ExecutionStatus, StoredResult, ToolCallRun, ToolExecution
from tools.queries import approvals_for, executions_for
from tools.results import characters_for
from workspaces.errors import CapstanError, NotVisible
from workspaces.permissions import VIEW_ALL, workspaces_where
from workspaces.readonly import ReadOnlyAdmin

__all__ = ["mcp_admin"]  # registers with the admin by being imported

SHOWN_TOKENS = 4_000
SUMMARY_CHARACTERS = 80  # in the list


def _json(value: Any) -> SafeString:
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True))


class _DeciderAdmin(ReadOnlyAdmin):
    """Rows that staff see who may decide in a workspace, besides those who may view the model."""

    def has_decide_permission(self, request: HttpRequest) -> bool:
        user = request.user
        return bool(user.is_authenticated and user.is_staff and workspaces_where(user, DECIDE))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_decide_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or self.has_decide_permission(request)


class _DecisionForm(forms.Form):
    decision = forms.ChoiceField(choices=[("approve", "Approve"), ("reject", "Reject")])
    note = forms.CharField(required=False, max_length=services.NOTE_CHARACTERS)
    arguments = forms.JSONField(required=False)
    any_arguments = forms.BooleanField(required=False)


@admin.register(Approval)
class ApprovalAdmin(_DeciderAdmin):
    """People decide here, one by one with edited arguments, or many at once (CAP-033)."""

    list_display = ("id", "status", "short_summary", "tool_name", "question", "requested_by", "workspace", "expires_at")
    list_filter = ("status", "question", "tool_name", "workspace")
    search_fields = ("tool_name", "summary", "correlation_id")
    list_select_related = ("requested_by", "workspace")
    actions = ("approve", "reject")
    change_form_template = "admin/capstan_tools/approval/change_form.html"
    exclude = ("arguments", "edited_arguments")
    readonly_fields = ("stored_arguments", "arguments_of_the_approver")

    @admin.display(description="summary")
    def short_summary(self, approval: Approval) -> str:
        return truncatechars(approval.summary, SUMMARY_CHARACTERS)

    @admin.display(description="Arguments")
    def stored_arguments(self, approval: Approval) -> SafeString:
        return _json(approval.arguments)

    @admin.display(description="Edited arguments")
    def arguments_of_the_approver(self, approval: Approval) -> SafeString | str:
        return "-" if approval.edited_arguments is None else _json(approval.edited_arguments)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Approval]:
        return approvals_for(request.user) if request.user.is_authenticated else Approval.objects.none()

    def get_urls(self) -> list[URLPattern]:
        decide = self.admin_site.admin_view(self.decide_view)
        return [path("<int:pk>/decide/", decide, name="capstan_tools_approval_decide"), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        approval = self.get_object(request, object_id)
        decidable = approval is not None and approval.status == "pending" and self.has_decide_permission(request)
        context = {
            "decidable": decidable,
            "asks_to_run": approval is not None and approval.question == "run",
            "may_stand": approval is not None and approval.policy in ("turn", "conversation"),
            "arguments_json": json.dumps(approval.arguments, indent=2, ensure_ascii=False) if approval else "",
        }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def decide_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Take one decision; only it, the note and edited arguments are read from the form."""
        if request.method != "POST" or not request.user.is_authenticated or not self.has_decide_permission(request):
            raise PermissionDenied
        back = HttpResponseRedirect(reverse("admin:capstan_tools_approval_change", args=[pk]))
        form = _DecisionForm(request.POST)
        if not form.is_valid():
            self.message_user(request, f"Not decided: {form.errors.as_text()}", messages.ERROR)
            return back
        given = form.cleaned_data
        edited = given["arguments"] if given["decision"] == "approve" else None
        if edited is not None and not isinstance(edited, dict):
            self.message_user(request, "Not decided: the arguments are no JSON object.", messages.ERROR)
            return back
        try:
            services.decide(
                approval_id=pk,
                user=request.user,
                decision=given["decision"],
                note=given["note"],
                arguments=edited,
                any_arguments=given["any_arguments"] and given["decision"] == "approve",
                now=timezone.now(),
            )
        except NotVisible as exc:
            raise Http404 from exc
        except CapstanError as exc:
            self.message_user(request, f"Not decided: {exc}", messages.ERROR)
        return back

    @admin.action(description="Approve selected calls", permissions=["decide"])
    def approve(self, request: HttpRequest, chosen: QuerySet[Approval]) -> None:
        self._decide_all(request, chosen, "approve")

    @admin.action(description="Reject selected calls", permissions=["decide"])
    def reject(self, request: HttpRequest, chosen: QuerySet[Approval]) -> None:
        self._decide_all(request, chosen, "reject")

    def _decide_all(self, request: HttpRequest, chosen: QuerySet[Approval], decision: services.Decision) -> None:
        assert request.user.is_authenticated
        decided = 0
        for approval in chosen.order_by("pk"):
            try:
                services.decide(approval_id=approval.pk, user=request.user, decision=decision, now=timezone.now())
                decided += 1
            except (ToolsError, NotVisible) as exc:
                self.message_user(request, f"{approval.pk} was not decided: {exc}", messages.WARNING)
        self.message_user(request, f"{decided} decided.")


@admin.register(ToolExecution)
class ToolExecutionAdmin(_DeciderAdmin):
    """The ledger (CAP-101); a person says here what became of a call whose outcome is unknown."""

    list_display = ("created", "tool_name", "status", "ms", "user", "correlation", "effect", "workspace")
    list_filter = ("status", "effect", "mode", "cached", "workspace")
    search_fields = ("tool_name", "correlation_id", "conversation_id", "plan_id", "error")
    list_select_related = ("user", "workspace")
    date_hierarchy = "created_at"
    actions = ("took_effect", "took_no_effect")
    exclude = ("arguments", "result")
    readonly_fields = ("call_arguments", "call_result")

    @admin.display(description="ms", ordering="duration_ms")
    def ms(self, row: ToolExecution) -> int | None:
        return row.duration_ms

    @admin.display(description="Arguments")
    def call_arguments(self, row: ToolExecution) -> SafeString:
        return _json(row.arguments)

    @admin.display(description="Result")
    def call_result(self, row: ToolExecution) -> SafeString:
        stored = StoredResult.objects.filter(pk=row.pk).first()
        if stored is None:
            return _json(row.result)
        shown = stored.text[: characters_for(stored.text, SHOWN_TOKENS)]
        return format_html("<pre>{}</pre><p>{} characters in all</p>", shown, len(stored.text))

    def get_queryset(self, request: HttpRequest) -> QuerySet[ToolExecution]:
        return executions_for(request.user) if request.user.is_authenticated else ToolExecution.objects.none()

    @admin.action(description="Unknown outcome: it took effect", permissions=["decide"])
    def took_effect(self, request: HttpRequest, chosen: QuerySet[ToolExecution]) -> None:
        self._settle(request, chosen, happened=True)

    @admin.action(description="Unknown outcome: it did not take effect", permissions=["decide"])
    def took_no_effect(self, request: HttpRequest, chosen: QuerySet[ToolExecution]) -> None:
        self._settle(request, chosen, happened=False)

    def _settle(self, request: HttpRequest, chosen: QuerySet[ToolExecution], *, happened: bool) -> None:
        assert request.user.is_authenticated
        where = workspaces_where(request.user, DECIDE)
        settled = sum(
            services.settle_unknown(
                execution_id=row.pk, user=request.user, happened=happened, now=timezone.now(), workspace_ids=where
            )
            for row in chosen.filter(status=ExecutionStatus.UNKNOWN)
        )
        self.message_user(request, f"{settled} settled; the others had no unknown outcome.")


@admin.register(ToolCallRun)
class ToolCallRunAdmin(_DeciderAdmin):
    list_display = ("id", "created_at", "tool_name", "door", "status", "user", "workspace", "error")
    list_filter = ("status", "door", "workspace")
    search_fields = ("tool_name", "correlation_id")
    list_select_related = ("user", "workspace")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ToolCallRun]:
        user = request.user
        if not user.is_authenticated:
            return ToolCallRun.objects.none()
        rows = ToolCallRun.objects.visible_to(user)
        return rows.filter(user=user) | rows.filter(workspace__in=workspaces_where(user, DECIDE, VIEW_ALL))
