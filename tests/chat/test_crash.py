"""kill -9 of the web process at each named point: the turn ends properly, unattended (design § 6).

Real processes, killed with SIGKILL. The table runs the turn in a small process of its own and recovers it here; one
point runs the whole of it: a web process that dies, a worker, sweep and beat that take over.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from datetime import timedelta
from functools import partial
from pathlib import Path
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
from plan.models import ExecutionPlan
from tests.chat.outside import agent_with, outside
from tests.support.runs import make_user, make_workspace
from tests.support.waiting import wait_until
from tools.models import Approval, Question, ToolExecution
from tools.services import decide
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


def test_a_message_whose_process_died_before_it_ran_is_found(asked, processes, openai_loopback):
    """`turn.message_stored`: the sweep stands by for 10 s, then a worker is told."""
    model = openai_loopback()
    _, base = processes.web(environment={**model.environment(), "CAPSTAN_CRASH_AT": "turn.message_stored"})
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        asked.post(base, "Hello")
    assert processes.running[-1].wait() == -signal.SIGKILL
    turn = Turn.objects.get()
    assert (turn.status, turn.fence, turn.dispatches) == ("queued", 0, 1)
    assert Turn.objects.take_due() == []  # its sender is about to run it
    Turn.objects.filter(pk=turn.pk).update(dispatched_at=timezone.now() - timedelta(seconds=10.5))
    assert [due.pk for due in Turn.objects.take_due()] == [turn.pk]
    llm = ScriptedLLM([say(DONE)])
    done = run_turn(turn.pk, agents=partial(create_agent, llm=llm), clock=timezone.now)
    assert (done.status, done.answer) == ("completed", DONE)
    assert model.script.requests == []
    roles = Message.objects.filter(turn=turn).order_by("round").values_list("role", "text")
    assert list(roles) == [("user", "Hello"), ("assistant", DONE)]


def test_a_process_killed_between_two_parallel_results_runs_both_reads_again(asked, processes, settings, tmp_path):
    settings.CAPSTAN_LEASE_SECONDS = 1
    turn, script, world = asked.send("Look around"), tmp_path / "script.json", tmp_path / "world"
    made = [{"name": "look", "arguments": {"at": at}} for at in ("up", "down")]
    script.write_text(json.dumps([{"content": "", "tool_calls": made}]))
    child = processes.start(
        "child",
        ("-m", "tests.chat.crash_child", str(turn.pk), str(script), str(world)),
        {"CAPSTAN_CRASH_AT": "between", "CAPSTAN_LEASE_SECONDS": "1"},
    )
    assert child.wait(60) == -signal.SIGKILL, child.output
    assert sorted(world.read_text().split()) == ["down", "up"]
    assert Message.objects.filter(turn=turn).exclude(role="user").count() == 0
    Turn.objects.filter(pk=turn.pk).update(dispatched_at=None)
    wait_until(lambda: Turn.objects.take_due(), 5, what="the sweep finds the turn")
    tools = outside(world)
    llm = ScriptedLLM([calls(*[("look", each["arguments"]) for each in made]), say(DONE)])
    done = run_turn(turn.pk, agents=partial(agent_with, tools, llm), clock=timezone.now)
    assert (done.status, done.answer) == ("completed", DONE)
    rows = Message.objects.filter(turn=turn, role="tool").order_by("position")
    assert [row.position for row in rows] == [1, 2]
    assert ToolExecution.objects.filter(owner_id=turn.pk, status="succeeded").count() == 2
    assert sorted(world.read_text().split()) == ["down", "down", "up", "up"], "both looks were made again"


def test_a_process_killed_before_the_handing_off_round_commits_leaves_no_plan(asked, processes, settings, tmp_path):
    settings.CAPSTAN_LEASE_SECONDS = 1
    turn, script = asked.send("Plan it"), tmp_path / "script.json"
    plan = {"goal": "Split auth", "steps": [{"key": "look", "action": "Look", "is_critical": True}]}
    script.write_text(json.dumps([{"content": "", "tool_calls": [{"name": "create_plan", "arguments": plan}]}]))
    child = processes.start(
        "child",
        ("-m", "tests.chat.crash_child", str(turn.pk), str(script)),
        {"CAPSTAN_CRASH_AT": "loop.before_commit", "CAPSTAN_LEASE_SECONDS": "1"},
    )
    assert child.wait(60) == -signal.SIGKILL, child.output

    def left() -> tuple[int, int, int, str]:
        turn.refresh_from_db()
        said = Message.objects.filter(turn=turn).exclude(role="user")
        told = Event.objects.filter(stream=turn.stream_id, name="plan_created")
        return ExecutionPlan.objects.count(), said.count(), told.count(), turn.status

    assert left() == (0, 0, 0, "running")
    Turn.objects.filter(pk=turn.pk).update(dispatched_at=None)
    wait_until(lambda: Turn.objects.take_due(), 5, what="the sweep finds the turn")
    llm = ScriptedLLM([calls(("create_plan", plan))])
    run_turn(turn.pk, agents=partial(create_agent, llm=llm), clock=timezone.now)
    assert left() == (1, 3, 1, "completed")
    assert turn.plan_id == ExecutionPlan.objects.get().pk


class Outside:
    """A turn whose external call was cut off by SIGKILL, and what it had done outside by then."""

    def __init__(self, turn: Turn, world: Path) -> None:
        self.turn, self.world, self.tools = turn, world, outside(world)
        self.llm = ScriptedLLM([say(DONE)])

    def happened(self) -> list[str]:
        return self.world.read_text().split() if self.world.exists() else []

    def run(self) -> Turn:
        return run_turn(self.turn.pk, agents=partial(agent_with, self.tools, self.llm), clock=timezone.now)

    def call(self) -> ToolExecution:
        return ToolExecution.objects.get(owner_kind="turn", owner_id=self.turn.pk)


@pytest.fixture
def cut_off(asked, processes, settings, tmp_path):
    def cut(point: str, tool: str) -> Outside:
        settings.CAPSTAN_LEASE_SECONDS = 1
        turn, script, world = asked.send("Tell them"), tmp_path / "script.json", tmp_path / "world"
        script.write_text(json.dumps([{"content": "", "tool_calls": [{"name": tool, "arguments": {"text": "hi"}}]}]))
        child = processes.start(
            "child",
            ("-m", "tests.chat.crash_child", str(turn.pk), str(script), str(world)),
            {"CAPSTAN_CRASH_AT": point, "CAPSTAN_LEASE_SECONDS": "1"},
        )
        assert child.wait(60) == -signal.SIGKILL, child.output
        left = Outside(turn, world)
        assert left.call().status == "started"
        Turn.objects.filter(pk=turn.pk).update(dispatched_at=None)
        wait_until(lambda: Turn.objects.take_due(), 5, what="the sweep finds the turn")
        return left

    return cut


EXTERNAL = [("loop.external_started", 0), ("loop.external_ran", 1)]  # and how often the call had happened


@pytest.mark.parametrize(("point", "before"), EXTERNAL)
def test_an_external_call_that_was_cut_off_is_asked_about_and_never_made_again(asked, cut_off, point, before):
    left = cut_off(point, "tell")
    assert left.run().status == "waiting_approval"
    assert left.call().status == "unknown"
    assert len(left.happened()) == before
    [question] = Approval.objects.pending()
    assert (question.question, question.arguments) == (Question.HAPPENED, {"text": "hi"})
    assert left.llm.requests == [], "nothing is told to the model before the person has answered"

    decision = "approve" if before else "reject"
    decide(approval_id=question.pk, user=asked.user, decision=decision, now=timezone.now(), tools=left.tools)
    done = left.run()
    assert (done.status, done.answer) == ("completed", DONE)
    assert left.call().status == ("succeeded" if before else "failed")
    assert len(left.happened()) == before
    assert len(left.llm.requests) == 1


@pytest.mark.parametrize(("point", "before"), EXTERNAL)
def test_an_idempotent_external_call_that_was_cut_off_is_made_again_with_its_key(cut_off, point, before):
    left = cut_off(point, "notify")
    done = left.run()
    assert (done.status, done.answer) == ("completed", DONE)
    assert left.happened() == [left.call().idempotency_key] * (before + 1)
    assert left.call().status == "succeeded"
    assert Approval.objects.count() == 0
    assert len(left.llm.requests) == 1
