"""The pages: sign-in, a new chat, a conversation, a plan. They show rows; what changes one goes through the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_GET

from chat.http import error_body
from chat.page_branches import board_lines
from chat.page_queries import approval_views, last_event_id, plan_views, pretty, transcript_view
from chat.queries import conversation_for, conversations_of
from chat.templatetags.chat_pages import WORDS
from factory.health import model_is_connected
from plan.models import ExecutionPlan
from plan.queries import graph, visible_plan
from tools.models import Approval, ToolExecution
from tools.queries import approval_for
from tools.registry import label_of
from workspaces.errors import NotVisible
from workspaces.models import User, Workspace

View = Callable[..., HttpResponseBase]

SIDEBAR = 100  # conversations listed
# No inline script or style, nothing of another host: a text that slipped through could do nothing.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SUGGESTIONS = (
    ("Plan a refactor", "Analyse the auth module and propose a refactor plan"),
    ("Find your way", "Which modules does everything else depend on?"),
    ("Look for trouble", "Which elements are the hardest to change, and why?"),
)


def page(view: View) -> View:
    """What every page has: the content policy, no copy in caches, and words for what is not there."""

    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            response = view(request, *args, **kwargs)
        except NotVisible:
            response = _render(request, "chat/not_found.html", {"title": "Not found"}, status=404)
        response["Content-Security-Policy"] = POLICY
        response["Cache-Control"] = "no-store"
        return response

    return guarded


def _render(request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    shared: dict[str, Any] = {"model_is_connected": model_is_connected(), "words": WORDS}
    if isinstance(request.user, User):
        shared["conversations"] = conversations_of(request.user)[:SIDEBAR]
    return render(request, template, {**shared, **context}, status=status)


@method_decorator(page, name="dispatch")
class SignIn(LoginView):
    """Name and password; a signed-in user goes on."""

    template_name = "chat/login.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(title="Sign in", model_is_connected=model_is_connected(), **kwargs)


sign_out = page(LogoutView.as_view())


@page
@login_required
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """A new chat."""
    workspaces = Workspace.objects.of(_user(request))
    return _render(
        request,
        "chat/home.html",
        {"title": "New chat", "suggestions": SUGGESTIONS, "workspaces": workspaces, "chat_open": True},
    )


@page
@login_required
@require_GET
def conversation(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    """A conversation: what was said so far; the stream brings the rest."""
    user = _user(request)
    shown = conversation_for(user, conversation_id)
    transcript = transcript_view(shown, reader=user, everything="all" in request.GET)
    return _render(
        request,
        "chat/conversation.html",
        {
            "title": shown.title or "New chat",
            "conversation": shown,
            "transcript": transcript,
            "board": board_lines(shown.board),
            "writable": shown.user_id == user.pk,
        },
    )


@page
@login_required
@require_GET
def plan(request: HttpRequest, plan_id: int) -> HttpResponse:
    """A plan with its steps, syntheses and times."""
    user = _user(request)
    last_id = last_event_id(visible_plan(user, plan_id).stream_id)
    shown = visible_plan(user, plan_id)  # read behind `last_id`: what it does not show yet comes as an event
    [view] = plan_views(ExecutionPlan.objects.filter(pk=shown.pk), reader=user, with_tools=True)
    return _render(
        request,
        "chat/plan.html",
        {
            "title": f"Plan {shown.pk}",
            "plan": view,
            "last_id": last_id,
            "owner": shown.owner,
            "board": board_lines(shown.board),
            "has_board": bool(shown.board),
            "full": True,
            "graph": {**graph(shown), "now": timezone.now()},
        },
    )


@page
@login_required
@require_GET
def tool_detail(request: HttpRequest, kind: str, owner_id: int, round_number: int, position: int) -> HttpResponse:
    """Arguments and result of one call, as a piece of a page.

    Raises:
        NotVisible: no such call, or of a run that the user may not see.
    """
    user = _user(request)
    place = {"owner_kind": kind, "owner_id": owner_id, "round": round_number, "position": position}
    call = ToolExecution.objects.visible_to(user).filter(**place).first()
    if call is None:
        raise NotVisible(tool=f"{kind}:{owner_id}")
    if call.plan_id is not None:
        visible_plan(user, call.plan_id)
    elif call.conversation_id is not None:
        conversation_for(user, call.conversation_id)
    else:
        raise NotVisible(tool=f"{kind}:{owner_id}")
    return render(
        request,
        "chat/_tool_detail.html",
        {
            "call": call,
            "label": label_of(call.tool_name),
            "arguments": pretty(call.arguments),
            "result": pretty(value) if (value := call.value()) is not None else "",
        },
    )


@page
@login_required
@require_GET
def approval(request: HttpRequest, approval_id: int) -> HttpResponse:
    """The card of one approval, as a piece of a page: its stored arguments, all of them (CAP-033)."""
    user = _user(request)
    chosen = Approval.objects.filter(pk=approval_for(user, approval_id).pk)
    [card] = approval_views(chosen, reader=user)
    return render(request, "chat/_approval.html", {"approval": card})


def nothing(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    """An address that leads nowhere: our page, for the API its usual error."""
    if request.path.startswith("/api/"):
        return JsonResponse(error_body("not_found", "There is nothing at this address."), status=404)
    return _nothing(request)


@page
def _nothing(request: HttpRequest) -> HttpResponse:
    return render(request, "chat/not_found.html", {"title": "Not found"}, status=404)


class NothingHere:
    """With DEBUG, `nothing` in place of Django's page for developers; without it Django asks `handler404` itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not settings.DEBUG or response.status_code != 404 or "Content-Security-Policy" in response:
            return response
        return nothing(request) if response.headers.get("Content-Type", "").startswith("text/html") else response


def _user(request: HttpRequest) -> User:
    return cast(User, request.user)
