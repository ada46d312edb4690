"""Rows that the pages' tests start from, and a reader of pages."""

from __future__ import annotations

from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

from django.test import Client
from django.utils import timezone

from chat.models import Conversation, Message, Turn
from plan.models import ExecutionPlan, PlanStep
from tests.support.runs import make_plan, make_turn
from tools.models import Approval, ToolExecution
from workspaces.models import User

HOSTILE = """<script>alert(1)</script><img src=x onerror=alert(1)>"'><svg onload=alert(1)>{{ 7|add:7 }}{% now "Y" %}"""


class Page(HTMLParser):
    """Tags, their attributes, and the text between."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def cannot_act(body: bytes) -> Page:
    """Nothing in the page can run but our own files."""
    page = Page(body)
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "embed", "base", "style"}, tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        assert not str(attributes.get("href") or "").startswith(("javascript:", "data:")), attributes
        if tag == "script":
            source = attributes.get("src") or ""
            assert source.startswith("/static/chat/") or attributes.get("type") == "application/json", attributes
    return page


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def ended_turn(conversation: Conversation, question: str, answer: str, **columns: Any) -> Turn:
    """A turn that ended, with its question and one reply."""
    active = Conversation.objects.get(pk=conversation.pk).active_turn
    turn = make_turn(conversation, after=active, **columns)
    asked = Message.objects.create(conversation=conversation, turn=turn, role="user", round=0, text=question)
    Message.objects.create(conversation=conversation, turn=turn, role="assistant", round=1, text=answer)
    Turn.objects.filter(pk=turn.pk).update(status="completed", ended_at=timezone.now(), question=asked)
    Conversation.objects.filter(pk=conversation.pk).update(active_turn=turn)
    return turn


def called(owner_kind: str, owner_id: int, conversation: Conversation, **columns: Any) -> ToolExecution:
    fields: dict[str, Any] = {"round": 1, "position": 1, "tool_name": "search_things", "status": "succeeded"}
    return ToolExecution.objects.create(
        workspace=conversation.workspace,
        user=conversation.user,
        correlation_id="c",
        owner_kind=owner_kind,
        owner_id=owner_id,
        conversation_id=conversation.pk,
        mode="conversation",
        arguments_digest="d",
        idempotency_key="k",
        **{**fields, **columns},
    )


def finished_plan(conversation: Conversation, *, turn: Turn | None = None, text: str = "done") -> ExecutionPlan:
    plan = make_plan(owner=conversation.user, workspace=conversation.workspace, conversation_id=conversation.pk)
    started = timezone.now()
    PlanStep.objects.create(
        plan=plan,
        key="first",
        order=1,
        action=text,
        status="completed",
        llm_synthesis=text,
        started_at=started,
        ended_at=started + timedelta(seconds=2.1),
    )
    PlanStep.objects.create(plan=plan, key="second", order=2, action=text, status="failed", error=text)
    ExecutionPlan.objects.filter(pk=plan.pk).update(
        stream=conversation.stream,
        goal=text,
        status="completed",
        ended_at=timezone.now(),
        turn_id=turn.pk if turn is not None else None,
    )
    plan.refresh_from_db()
    return plan


def asked(owner_kind: str, owner_id: int, conversation: Conversation, **columns: Any) -> Approval:
    """An approval that waits."""
    fields: dict[str, Any] = {
        "tool_name": "delete_things",
        "effect": "write",
        "policy": "call",
        "arguments": {"key": "k1"},
    }
    return Approval.objects.create(
        workspace=conversation.workspace,
        requested_by=conversation.user,
        correlation_id="c",
        owner_kind=owner_kind,
        owner_id=owner_id,
        conversation_id=conversation.pk,
        round=1,
        position=1,
        identity="planner",
        mode="conversation",
        arguments_digest="d",
        expires_at=timezone.now() + timedelta(days=7),
        **{**fields, **columns},
    )
