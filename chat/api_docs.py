"""What the API is: its OpenAPI schema, and a page that shows it and tries it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET
from drf_spectacular.views import SpectacularAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from chat.http import ApiView, error_response
from chat.pages import page


class Schema(SpectacularAPIView):
    """The schema, as YAML or JSON; for those who may use the API."""

    authentication_classes = ApiView.authentication_classes
    permission_classes = ApiView.permission_classes

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        return error_response

    def handle_exception(self, exc: Exception) -> Response:
        self.request.accepted_renderer = JSONRenderer()  # an error is JSON, whatever was asked for
        self.request.accepted_media_type = JSONRenderer.media_type
        return super().handle_exception(exc)


@page
@login_required
@require_GET
def documentation(request: HttpRequest) -> HttpResponse:
    """Swagger UI on the schema, from files of this server alone; its calls carry the reader's session."""
    return render(request, "chat/api_docs.html", {"title": "API"})
