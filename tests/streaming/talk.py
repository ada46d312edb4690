"""What the tests of the stream say and read."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import transaction
from rest_framework.authtoken.models import Token

from chat.models import Conversation
from events.models import EventRecord, Stream
from events.types import EventName
from plan.models import ExecutionPlan
from streaming.signals import wake
from tests.streaming.servers import StreamClient, Web, reading
from workspaces.models import User


def say(conversation: Conversation | ExecutionPlan, *texts: str, signal: bool = True, **payload: Any) -> list[int]:
    """Rows as a unit would write them."""
    records = [EventRecord(EventName.TURN_QUEUED, {"text": text, **payload}) for text in texts]
    with transaction.atomic():  # number and row become visible together
        ids = Stream.objects.append(conversation.stream_id, records, correlation_id="c1")
    if signal:
        wake(conversation.stream_id)
    return ids


def token_of(user: User) -> str:
    return f"Token {Token.objects.get_or_create(user=user)[0].key}"


def open_stream(web: Web, conversation: Conversation, *, query: str = "", last_id: str | None = None) -> Any:
    headers = {"Authorization": token_of(conversation.user)}
    if last_id is not None:
        headers["Last_Event_ID"] = last_id
    return reading(web, f"/api/conversations/{conversation.pk}/stream/{query}", **headers)


def texts(client: StreamClient) -> list[str]:
    return [json.loads(event["data"])["text"] for event in client.named("turn_queued")]


def id_of(client: StreamClient, text: str) -> str:
    return next(str(e["id"]) for e in client.rows if json.loads(e["data"]).get("text") == text)


def joined(client: StreamClient, number: int = 1) -> str:
    """The live text of a round as a client puts it together."""
    text = ""
    for event in client.named("token"):
        data = json.loads(event["data"])
        if data["round"] != number:
            continue
        text = text[: data["offset"]] + data["text"] + text[data["offset"] + len(data["text"]) :]
    return text


def session_of(user: User) -> str:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    assert session.session_key
    return session.session_key
