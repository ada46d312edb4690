from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse

from prompt.models import WorkflowTemplate
from prompt.services import publish_recipe
from prompt.validate import validators


class RecipeForm(forms.ModelForm[WorkflowTemplate]):
    class Meta:
        model = WorkflowTemplate
        fields = ("name", "prompt_template", "required_tools", "expected_steps", "validators")

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean() or {}
        for name in ("required_tools", "expected_steps", "validators"):
            value = cleaned.get(name) or []
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                self.add_error(name, 'A JSON list of texts, such as ["find_elements"].')
        unknown = [v for v in cleaned.get("validators") or [] if v not in validators]
        if unknown:
            self.add_error("validators", f"Not registered: {unknown}; there are {sorted(validators)}.")
        return cleaned


@admin.register(WorkflowTemplate)
class WorkflowTemplateAdmin(admin.ModelAdmin[WorkflowTemplate]):
    """Saving makes the next version: the one shown stays as it was."""

    form = RecipeForm
    list_display = ("name", "version", "is_active", "created_at")
    list_filter = ("is_active",)
    search_fields = ("name",)

    def has_delete_permission(self, request: HttpRequest, obj: WorkflowTemplate | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: WorkflowTemplate | None = None) -> tuple[str, ...]:
        return ("name",) if obj else ()

    def save_model(self, request: HttpRequest, obj: WorkflowTemplate, form: Any, change: bool) -> None:
        published = publish_recipe(
            name=obj.name,
            prompt_template=obj.prompt_template,
            required_tools=obj.required_tools or [],
            expected_steps=obj.expected_steps or [],
            validators=obj.validators or [],
        )
        obj.pk, obj.version = published.pk, published.version
        if change:
            messages.info(
                request, f"{published} is active now; earlier versions stay for the runs that began with them."
            )

    def log_change(self, request: HttpRequest, obj: WorkflowTemplate, message: Any) -> Any:
        return super().log_addition(request, obj, message)

    def response_change(self, request: HttpRequest, obj: WorkflowTemplate) -> HttpResponse:
        return self.response_post_save_change(request, obj)
