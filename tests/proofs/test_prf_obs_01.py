"""PRF-OBS-01: one correlation id from the HTTP request to the log and the usage row (CAP-101)."""

from __future__ import annotations

import re

import httpx
import pytest
from rest_framework.authtoken.models import Token

from chat.models import Turn
from events.models import Event
from llm.testing import say
from observability.models import AgentInteraction
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.runs import make_conversation, make_user, make_workspace

pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


def test_the_correlation_id_is_in_the_log_and_on_every_row(processes, openai_loopback) -> None:
    user = make_user()
    conversation = make_conversation(user=user, workspace=make_workspace(user))
    model = openai_loopback(say("Hello."))
    web, url = processes.web(environment=model.environment())
    answer = httpx.post(
        f"{url}/api/conversations/{conversation.pk}/messages/",
        json={"text": "Hello?"},
        headers={"Authorization": f"Token {Token.objects.create(user=user).key}", "X-Correlation-ID": "abc-123"},
        timeout=30,
        trust_env=False,
    )
    assert answer.status_code == 201, answer.text
    assert answer.headers["X-Correlation-ID"] == "abc-123"
    web.wait_for_line(r"\[abc-123\].*llm_call")
    interaction = AgentInteraction.objects.get()
    assert (interaction.correlation_id, interaction.owner_kind) == ("abc-123", "turn")
    assert interaction.input_tokens is not None
    assert Turn.objects.get().correlation_id == "abc-123"
    assert set(Event.objects.values_list("correlation_id", flat=True)) == {"abc-123"}
    assert_agent_story(record_trace("abc-123", workflow="SC-01"), workflow="SC-01", beats={"entry": [], "exit": []})


def test_an_id_that_is_not_safe_to_log_is_replaced(client) -> None:
    answer = client.get("/health/live", headers={"X-Correlation-ID": "a\nb" + "x" * 100})
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["X-Correlation-ID"])
