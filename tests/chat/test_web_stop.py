"""A web process that is told to stop hands its turns back instead of taking them down (design § 5.5)."""

from __future__ import annotations

import http.client
import json
import threading

import pytest
from rest_framework.authtoken.models import Token

from chat.models import Turn
from llm.testing import say
from llm.testing.gate import Gate
from llm.testing.loopback import OpenAILoopback
from tests.support.processes import Processes
from tests.support.runs import make_conversation

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_turn_in_a_request_is_handed_back_when_its_process_stops(processes: Processes) -> None:
    conversation = make_conversation()
    token = Token.objects.create(user=conversation.user).key
    gate = Gate()
    answers: list[tuple[int, dict[str, object]]] = []
    with OpenAILoopback([say("too late", gate=gate)]) as model:
        process, url = processes.web(environment=model.environment())

        def ask() -> None:
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
            headers = {"Authorization": f"Token {token}", "Content-Type": "application/json"}
            path = f"/api/conversations/{conversation.pk}/messages/"
            connection.request("POST", path, json.dumps({"text": "Hello"}), headers)
            response = connection.getresponse()
            answers.append((response.status, json.loads(response.read())))
            connection.close()

        asking = threading.Thread(target=ask)
        asking.start()
        assert gate.reached.wait(20)
        process.terminate()
        asking.join(20)
        gate.open()
    turn = Turn.objects.get(conversation=conversation)
    assert (turn.status, turn.attempts, turn.lease_owner) == ("queued", 0, "")
    [(status, body)] = answers
    assert (status, body["turn_id"]) == (202, turn.pk)
