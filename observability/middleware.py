"""Honour or make the correlation id at the door, and echo it (CAP-101)."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from observability.correlation import accept, correlated


class CorrelationMiddleware:
    """Sets `request.correlation_id`; the header's name is `CORRELATION_ID_HEADER`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with correlated(accept(request.headers.get(settings.CORRELATION_ID_HEADER))) as correlation_id:
            request.correlation_id = correlation_id  # type: ignore[attr-defined]  # read by the doors
            response = self.get_response(request)
        response.headers[settings.CORRELATION_ID_HEADER] = correlation_id
        return response
