"""kill -9 of the web process at each named point: the turn ends properly, unattended (design § 6).

Real processes, killed with SIGKILL. The table runs the turn in a small process of its own and recovers it here; one
point runs the whole of it: a web process that dies, a worker, sweep and beat that take over.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.authtoken.models import Token

from catalog.models import Element, ElementNote, Repository
from chat import services
from chat.models import Conversation, Message, Turn
from chat.runner import run_turn
from events.models import Event
from factory.agents import create_agent
from llm.testing import ScriptedLLM, calls, say
from observability.models import AgentInteraction
from tests.support.runs import make_user, make_workspace
from tests.support.waiting import wait_until
from tools.models import ToolExecution
from workspaces.models import User

LEASE_S = 3
RECOVERED_S = 3 * (LEASE_S + LEASE_S / 6 + 2)


class Asked:
    """A conversation over a workspace with one element, and the ways to send to it."""

    def __init__(self, user: User, conversation: Conversation) -> None:
        self.user, self.conversation = user, conversation
        self.token = Token.objects.create(user=user).key

    def send(self, text: str) -> Turn:
        return services.send_message(
            conversation_id=self.conversation.pk,
            author=self.user,
            text=text,
            respond_async=False,
            correlation_id="crash",
            now=timezone.now(),
        )

    def post(self, base: str, text: str) -> None:
        request = urllib.request.Request(
            f"{base}/api/conversations/{self.conversation.pk}/messages/",
            data=json.dumps({"text": text}).encode(),
            headers={"Authorization": f"Token {self.token}", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()


@pytest.fixture
def asked(transactional_db):
    user = make_user(is_superuser=True)
    workspace = make_workspace(user)
    repository = Repository.objects.create(workspace=workspace, label="shop")
    Element.objects.create(workspace=workspace, repository=repository, key="shop.auth", kind="module", name="auth")
    conversation = services.create_conversation(user=user, workspace=workspace, now=timezone.now())
    return Asked(user, conversation)


NOTE = {"content": "I note that.", "tool_calls": [
    {"name": "annotate_element", "arguments": {"key": "shop.auth", "note": "Split it."}}]}  # fmt: skip
LOOKS = {"content": "", "tool_calls": [{"name": "catalog_overview"}, {"name": "catalog_overview"}]}
DONE = "Noted, and all is well."

# where it dies; what the model says before the crash, and after it; how many tools ran in all
CRASHES = [
    ("turn.claimed", [NOTE], [NOTE, DONE], 1),
    ("turn.streaming", [NOTE], [NOTE, DONE], 1),
    ("turn.streaming:4", [NOTE, DONE], [DONE], 1),  # inside the second answer
    ("loop.answered", [NOTE], [NOTE, DONE], 1),
    ("loop.answered:2", [NOTE, DONE], [DONE], 1),
    ("loop.before_commit", [NOTE], [NOTE, DONE], 1),
    ("loop.before_commit", [LOOKS], [LOOKS, DONE], 2),  # both reads came back, neither is stored
    ("loop.round_committed", [NOTE], [DONE], 1),
    ("turn.answered", [NOTE, DONE], [], 1),
]


IDS = [f"{number}-{crash[0]}" for number, crash in enumerate(CRASHES)]


@pytest.mark.parametrize(("point", "before", "after", "tools"), CRASHES, ids=IDS)
def test_a_killed_process_loses_nothing(asked, processes, settings, tmp_path, point, before, after, tools):
    settings.CAPSTAN_LEASE_SECONDS = 1
    turn = asked.send("Note that auth should be split")
    script = tmp_path / "script.json"
    script.write_text(json.dumps(before))
    child = processes.start(
        "child",
        ("-m", "tests.chat.crash_child", str(turn.pk), str(script)),
        {"CAPSTAN_CRASH_AT": point, "CAPSTAN_LEASE_SECONDS": "1"},
    )
    assert child.wait(60) == -9, child.output
    if after:
        Turn.objects.filter(pk=turn.pk).update(dispatched_at=None)
        wait_until(lambda: Turn.objects.take_due(), 5, what="the sweep finds the turn")
    llm = ScriptedLLM(_answers(after) or ["never asked"])

    def agents(identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
        return create_agent(identity, llm=llm, mode=mode, tier=tier)

    done = run_turn(turn.pk, agents=agents, clock=timezone.now)
    assert (done.status, done.answer) == ("completed", DONE)
    assert len(llm.requests) == len(after), "a reply that was stored is not asked for again"
    assert AgentInteraction.objects.filter(owner_id=turn.pk, committed=True).count() == 2
    assert ElementNote.objects.count() == (1 if tools == 1 else 0)
    assert ToolExecution.objects.filter(owner_id=turn.pk, status="succeeded").count() == tools
    rows = Message.objects.filter(turn=turn).order_by("round", "position")
    roles = ["user", "assistant", *["tool"] * tools, "assistant"]
    assert [row.role for row in rows] == roles
    ends = Event.objects.filter(stream=turn.stream_id, name="turn_ended")
    assert [event.payload["status"] for event in ends] == ["completed"]


def _answers(items: list[Any]) -> list[Any]:
    return [
        say(item)
        if isinstance(item, str)
        else calls(*[(made["name"], made.get("arguments", {})) for made in item["tool_calls"]])
        for item in items
    ]


@pytest.mark.timeout(120)
def test_a_killed_web_process_hands_its_turn_to_a_worker(asked, processes, openai_loopback):
    model = openai_loopback(say(DONE), say(DONE))
    environment = {"CAPSTAN_LEASE_SECONDS": str(LEASE_S), **model.environment()}
    processes.worker("turns,plans", environment=environment)
    processes.worker("sweep", pool="solo", environment=environment)
    processes.beat(environment=environment)
    web, base = processes.web(environment={**environment, "CAPSTAN_CRASH_AT": "turn.streaming"})
    with pytest.raises((urllib.error.URLError, ConnectionError, TimeoutError)):
        asked.post(base, "Hello")
    assert web.wait() == -9
    wait_until(lambda: Turn.objects.get().ended, RECOVERED_S, what="a worker ends the turn")
    turn = Turn.objects.get()
    assert (turn.status, turn.answer, turn.attempts) == ("completed", DONE, 0)
    assert len(model.script.requests) == 2
    assert Message.objects.filter(turn=turn).count() == 2


def test_a_message_whose_process_died_before_it_ran_is_found(asked):
    """`turn.message_stored`: the sweep stands by for 10 s, then a worker is told."""
    turn = asked.send("Hello")
    assert Turn.objects.take_due() == []  # its sender is about to run it
    Turn.objects.filter(pk=turn.pk).update(dispatched_at=timezone.now() - timedelta(seconds=10.5))
    assert [due.pk for due in Turn.objects.take_due()] == [turn.pk]
