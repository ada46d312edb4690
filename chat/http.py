"""What all API views share: who is asking, how failures look, and idempotent POSTs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, TokenAuthentication
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView, set_rollback

from chat import errors, idempotency
from chat.models import IdempotencyKey
from chat.numbers import whole_number
from observability.correlation import new_correlation_id
from plan.errors import NotAdaptable, OutcomeInvalid, PlanConflict, PlanInvalid, UnknownTemplate
from prompt.errors import InputInvalid, RecipeInvalid, UnknownRecipe
from tools.errors import ApprovalConflict, ApprovalForbidden, InvalidArguments, RunEnded
from workspaces.errors import CapstanError, NotVisible
from workspaces.models import User

logger = logging.getLogger(__name__)

# The one table that turns our errors into HTTP; the first that fits counts.
STATUS_OF: tuple[tuple[type[CapstanError], int], ...] = (
    (NotVisible, status.HTTP_404_NOT_FOUND),
    (errors.FieldInvalid, status.HTTP_400_BAD_REQUEST),
    (errors.TurnActive, status.HTTP_409_CONFLICT),
    (errors.ConversationBusy, status.HTTP_409_CONFLICT),
    (errors.IdempotencyMismatch, status.HTTP_422_UNPROCESSABLE_ENTITY),
    (errors.IdempotencyInProgress, status.HTTP_409_CONFLICT),
    (PlanInvalid, status.HTTP_400_BAD_REQUEST),
    (PlanConflict, status.HTTP_409_CONFLICT),
    (NotAdaptable, status.HTTP_409_CONFLICT),
    (OutcomeInvalid, status.HTTP_400_BAD_REQUEST),
    (UnknownTemplate, status.HTTP_400_BAD_REQUEST),
    (UnknownRecipe, status.HTTP_400_BAD_REQUEST),
    (RecipeInvalid, status.HTTP_400_BAD_REQUEST),
    (InputInvalid, status.HTTP_400_BAD_REQUEST),
    (RunEnded, status.HTTP_409_CONFLICT),
    (ApprovalConflict, status.HTTP_409_CONFLICT),
    (ApprovalForbidden, status.HTTP_403_FORBIDDEN),
    (InvalidArguments, status.HTTP_400_BAD_REQUEST),
)
CODES = {
    status.HTTP_400_BAD_REQUEST: "invalid",
    status.HTTP_401_UNAUTHORIZED: "not_authenticated",
    status.HTTP_403_FORBIDDEN: "forbidden",
    status.HTTP_404_NOT_FOUND: "not_found",
    status.HTTP_405_METHOD_NOT_ALLOWED: "method_not_allowed",
    status.HTTP_406_NOT_ACCEPTABLE: "not_acceptable",
    status.HTTP_413_REQUEST_ENTITY_TOO_LARGE: "too_large",
    status.HTTP_415_UNSUPPORTED_MEDIA_TYPE: "unsupported_media_type",
    status.HTTP_429_TOO_MANY_REQUESTS: "throttled",
}

MAX_DEPTH = 64  # levels of lists and objects in a request's JSON

Handler = Callable[..., Response]


def error_body(code: str, message: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    """`{"error": {"code", "message", "details"}}`."""
    return {"error": {"code": code, "message": message, "details": details or {}}}


def error_response(exc: Exception, context: dict[str, Any]) -> Response:
    """An exception as the API's answer.

    `ATOMIC_REQUESTS` is a check error (design § 2.5); where it is on all the same, an error that became an answer must
    roll its request back, or half of a failed request would be stored.
    """
    set_rollback()
    if isinstance(exc, CapstanError):
        code = next((number for kind, number in STATUS_OF if isinstance(exc, kind)), None)
        if code is None:
            logger.error("no status for %s", exc.code, exc_info=exc)
            code = status.HTTP_500_INTERNAL_SERVER_ERROR
        message = (exc.__doc__ or exc.code).strip().splitlines()[0]
        return Response(error_body(exc.code, message, exc.details), status=code)
    if isinstance(exc, (OperationalError, InterfaceError)):
        logger.error("the database failed: %s", exc)
        body = error_body("database.unavailable", "The database cannot be reached; nothing was lost, try again.")
        return Response(body, status=status.HTTP_503_SERVICE_UNAVAILABLE, headers={"Retry-After": "5"})
    if isinstance(exc, RequestDataTooBig):
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
        return Response(error_body(CODES[code], f"A request's body may hold {limit:,} bytes."), status=code)
    if isinstance(exc, DataError):
        logger.warning("the database cannot hold a value of the request: %s", exc)
        body = error_body("invalid", "A value of the request cannot be used: it holds a NUL or is out of range.")
        return Response(body, status=status.HTTP_400_BAD_REQUEST)
    if isinstance(exc, Http404):
        exc = exceptions.NotFound()
    elif isinstance(exc, PermissionDenied):
        exc = exceptions.PermissionDenied()
    if not isinstance(exc, exceptions.APIException):
        logger.error("a request failed", exc_info=exc)
        body = error_body("internal", "The server failed on this request; the log says more under its correlation id.")
        return Response(body, status=status.HTTP_500_INTERNAL_SERVER_ERROR)
    headers = {}
    if getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = str(exc.auth_header)  # type: ignore[attr-defined]  # set by handle_exception
    if isinstance(exc, exceptions.ValidationError):
        detail = exc.detail if isinstance(exc.detail, dict) else {"body": exc.detail}
        named = {field: _first(problems) for field, problems in detail.items()}
        message = "; ".join(f"{field}: {problem}" for field, problem in named.items())
        return Response(error_body("invalid", message, {"fields": named}), status=exc.status_code, headers=headers)
    code_name = CODES.get(exc.status_code, "error")
    return Response(error_body(code_name, str(exc.detail)), status=exc.status_code, headers=headers)


def _first(problems: Any) -> str:
    while isinstance(problems, (list, dict)) and problems:
        problems = next(iter(problems.values())) if isinstance(problems, dict) else problems[0]
    return str(problems)


class ShallowJSONParser(JSONParser):
    """JSON, so deep as our own code and PostgreSQL may walk it."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        try:
            value = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise _too_deep() from None
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [
                inner
                for outer in level
                if isinstance(outer, (dict, list))
                for inner in (outer.values() if isinstance(outer, dict) else outer)
            ]
        if level:
            raise _too_deep()
        return value


def _too_deep() -> exceptions.ParseError:
    return exceptions.ParseError(f"The JSON is nested deeper than {MAX_DEPTH} levels.")


class ApiView(APIView):
    """Signed-in people and token holders; JSON in, JSON out."""

    authentication_classes: tuple[type[BaseAuthentication], ...] = (TokenAuthentication, SessionAuthentication)
    permission_classes: tuple[type[BasePermission], ...] = (IsAuthenticated,)
    parser_classes = (ShallowJSONParser, FormParser, MultiPartParser)
    renderer_classes = (JSONRenderer,)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        return error_response


def user_of(request: Request) -> User:
    """Who asks; the permission class has made sure that it is somebody."""
    assert isinstance(request.user, User)
    return request.user


def correlation_of(request: Request) -> str:
    """The request's correlation id, made or honoured by the middleware."""
    return getattr(request._request, "correlation_id", "") or new_correlation_id()


def wants_async(request: Request) -> bool:
    """Whether the client said `Prefer: respond-async` (RFC 7240)."""
    wanted = request.headers.get("Prefer", "")
    return any(part.split(";")[0].strip().lower() == "respond-async" for part in wanted.split(","))


def idempotent(handler: Handler) -> Handler:
    """Let a POST honour `Idempotency-Key`; the handler gets the key's row, or None, as `idempotency`.

    Where the row is `used`, the handler only shows what became of the request, by the queries that any view asks.
    """

    @wraps(handler)
    def wrapper(view: ApiView, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get(idempotency.HEADER)
        if key is None:
            return handler(view, request, *args, idempotency=None, **kwargs)
        row = idempotency.begin(
            user=user_of(request),
            key=key,
            path=f"{request.method} {request.path}",
            body=request.data,
        )
        try:
            response = handler(view, request, *args, idempotency=row, **kwargs)
        except Exception:
            idempotency.forget(row)
            raise
        idempotency.answered(row, status_code=response.status_code)
        if row.used:
            response.headers["Idempotent-Replay"] = "true"
        return response

    return wrapper


def page(request: Request, rows: Any, as_json: Callable[[Any], dict[str, Any]]) -> Response:
    """A slice of `rows` by `?limit=` (1 to 200) and `?offset=`, and whether there is more."""
    limit, offset = _number(request, "limit", 50, 1, 200), _number(request, "offset", 0, 0, 10_000_000)
    found = list(rows[offset : offset + limit + 1])
    following = offset + limit if len(found) > limit else None
    return Response({"results": [as_json(row) for row in found[:limit]], "next_offset": following})


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = whole_number(text)
    if number is None or not least <= number <= most:
        raise errors.FieldInvalid(field=name, problem=f"takes a whole number from {least} to {most}")
    return number


__all__ = [
    "ApiView",
    "IdempotencyKey",
    "correlation_of",
    "error_body",
    "error_response",
    "idempotent",
    "page",
    "user_of",
    "wants_async",
]
