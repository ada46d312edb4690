"""The board commits with the round whose reply wrote it: nothing that ends a process between two rounds loses it."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chat import services
from chat.models import Conversation, Message, Turn
from chat.runner import run_turn
from events.models import Event, channel_of
from factory.agents import create_agent
from llm.errors import LLMPermissionError
from llm.testing import Gate, ScriptedLLM, call, calls, cut, held, say
from plan import steering
from plan.models import ExecutionPlan, PlanStep, StepMessage
from tests.support.plans import agents_on, events_of, hold_plan, llm_step, run_plan, statuses
from tests.support.runs import make_user, make_workspace
from tests.support.waiting import wait_until
from tools.ports import dispatcher
from tools.registry import Registry, tool
from worker.runner import Left

BOARD = {"phase": "explore", "next_intent": "count"}
BLOCK = f"<board>{json.dumps(BOARD)}</board>"
BAD = '<board>{"phase": }</board>'
BROKEN = r'<board>{"phase": "a\u0000b", "next_intent": "half \ud83d"}</board>'  # JSON that jsonb refuses
MENDED = {"phase": "a\ufffdb", "next_intent": "half \ufffd"}


class Leaving(ScriptedLLM):
    """Its request hands the turn over while the model is asked for the `at`-th time."""

    def __init__(self, answers: list[object], *, at: int) -> None:
        super().__init__(answers)
        self.at = at

    def call(self, request, *, on_event=None, cancel=None):
        if len(self.requests) + 1 == self.at:
            cancel.cancel("handover")
        return super().call(request, on_event=on_event, cancel=cancel)


class Talk:
    """A conversation whose turns run here, or in a process that dies."""

    def __init__(self, *, refused: bool) -> None:
        self.user = make_user(is_superuser=True)
        self.workspace = make_workspace(self.user)
        self.conversation = services.create_conversation(user=self.user, workspace=self.workspace, now=timezone.now())
        self.refused = refused

    def send(self, text: str) -> Turn:
        return services.send_message(
            conversation_id=self.conversation.pk,
            author=self.user,
            text=text,
            respond_async=True,
            correlation_id="board",
            now=timezone.now(),
        )

    def looks(self, block: str) -> dict[str, object]:
        """A reply with a board whose calls are stored in one statement, or, one of them refused, in a unit."""
        made = {"name": "no_such_tool"} if self.refused else {"name": "catalog_overview"}
        return {"content": f"I look first.\n{block}", "tool_calls": [made, {"name": "catalog_overview"}]}

    def run(self, turn: Turn, llm: ScriptedLLM) -> Turn:
        def agents(identity: str, *, mode: object = "conversation", tier: object = None) -> object:
            return create_agent(identity, llm=llm, mode=mode, tier=tier)

        return run_turn(turn.pk, agents=agents, clock=timezone.now)

    def board(self) -> dict[str, str]:
        return Conversation.objects.get(pk=self.conversation.pk).board

    def told(self) -> list[str]:
        rows = Event.objects.filter(stream_id=self.conversation.pk, name="blackboard").order_by("seq")
        return [row.payload["status"] for row in rows]


def told_board(request: object) -> dict[str, str]:
    """The board in layer 4 of a request."""
    [question] = [m for m in request.messages if m.role == "user"][-1:]
    return json.loads(question.content.split("<context>\n")[1].split("\n</context>")[0]).get("board", {})


@pytest.mark.parametrize("refused", [False, True], ids=["one statement", "a unit"])
@pytest.mark.parametrize(("point", "stored"), [("loop.before_commit", False), ("loop.round_committed", True)])
def test_cap_073_a_killed_process_leaves_the_board_with_its_round(
    processes, settings, tmp_path, transactional_db, point, stored, refused
):
    settings.CAPSTAN_LEASE_SECONDS = 1
    talk = Talk(refused=refused)
    turn = talk.send("Look around")
    script = tmp_path / "script.json"
    script.write_text(json.dumps([talk.looks(BLOCK)]))
    child = processes.start(
        "child",
        ("-m", "tests.chat.crash_child", str(turn.pk), str(script)),
        {"CAPSTAN_CRASH_AT": point, "CAPSTAN_LEASE_SECONDS": "1"},
    )
    assert child.wait(60) == -signal.SIGKILL, child.output
    assert talk.board() == (BOARD if stored else {})
    assert Message.objects.filter(turn=turn, role="assistant").count() == (1 if stored else 0)
    assert talk.told() == (["set"] if stored else [])

    Turn.objects.filter(pk=turn.pk).update(dispatched_at=None)
    wait_until(lambda: Turn.objects.take_due(), 5, what="the sweep finds the turn")
    llm = ScriptedLLM([say("All is well."), say("Yes.")] if stored else [say(f"All is well.\n{BLOCK}"), say("Yes.")])
    assert talk.run(turn, llm).answer == "All is well."
    assert (talk.board(), talk.told()) == (BOARD, ["set"])
    assert talk.run(talk.send("Really?"), llm).answer == "Yes."
    assert told_board(llm.requests[-1]) == BOARD


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("refused", [False, True], ids=["one statement", "a unit"])
def test_cap_073_a_turn_that_is_handed_to_a_worker_takes_its_board_along(refused):
    talk, gate = Talk(refused=refused), Gate()
    turn = talk.send("Look around")
    first = talk.looks(BLOCK)
    asked = calls(*[(made["name"], {}) for made in first["tool_calls"]], text=first["content"])
    handed = talk.run(turn, Leaving([asked, held(gate, "late")], at=2))
    assert (handed.status, talk.board()) == ("queued", BOARD)
    gate.open()
    done = talk.run(turn, ScriptedLLM([say("All is well.")]))
    assert (done.status, done.answer) == ("completed", "All is well.")
    assert (talk.board(), talk.told()) == (BOARD, ["set"])


def test_cap_072_a_bad_board_in_a_round_keeps_the_old_one(chat_with):
    it = chat_with(
        calls(call("look"), text=f"First.\n{BLOCK}"), calls(call("look", at="b"), text=f"Then.\n{BAD}"), say("Done.")
    )
    it.say("go")
    told = Event.objects.filter(stream=it.conversation.pk, name="blackboard").order_by("seq")
    assert [(row.payload["status"], row.payload["board"]) for row in told] == [("set", BOARD), ("retain", None)]
    assert Conversation.objects.get(pk=it.conversation.pk).board == BOARD
    assert not Message.objects.filter(text__contains="board").exists()


@pytest.mark.parametrize(
    "replies",
    [[calls(call("look"), text=f"First.\n{BROKEN}"), say("Done.")], [say(f"Done.\n{BROKEN}")]],
    ids=["one statement", "a unit"],
)
def test_cap_072_a_board_that_the_database_cannot_hold_costs_no_answer(chat_with, replies):
    it = chat_with(*replies)
    turn = it.say("go")
    assert (turn.status, turn.answer) == ("completed", "Done.")
    assert Conversation.objects.get(pk=it.conversation.pk).board == MENDED


@pytest.mark.parametrize("kept", [True, False])
def test_cap_071_what_was_cut_off_loses_a_board_where_its_agent_keeps_one(chat_with, kept):
    text = f"So far.\n{BLOCK}"
    it = chat_with(cut(text, LLMPermissionError()))
    usual = it.agents

    def agents(identity: str, **options: object) -> object:
        agent = usual(identity, **options)
        return replace(agent, identity=replace(agent.identity, blackboard=kept))

    it.agents = agents
    turn = it.say("go")
    assert (turn.status, turn.answer) == ("failed", "So far." if kept else text)


def test_cap_073_a_round_that_parks_stores_its_board(chat_with):
    it = chat_with(calls(call("burn"), text=f"I ask first.\n{BLOCK}"))
    assert it.say("go").status == "waiting_approval"
    assert Conversation.objects.get(pk=it.conversation.pk).board == BOARD


def test_only_a_round_that_writes_a_board_pays_for_it(chat_with):
    it = chat_with(
        calls(call("look"), text="First."), calls(call("look", at="b"), text=f"Then.\n{BLOCK}"), say("Done.")
    )
    with CaptureQueriesContext(connection) as captured:
        it.say("go")
    rounds = [query["sql"] for query in captured.captured_queries if "jsonb_to_recordset" in query["sql"]]
    assert [sql.count("SET board = ") for sql in rounds] == [0, 1]
    assert [sql.count("capstan_chat_conversation") for sql in rounds] == [0, 1]


@pytest.fixture
def chat_with(transactional_db):
    """A conversation with a tool that reads and one that waits for a person."""
    tools = Registry()

    @tool(effect="read", chat=True, registry=tools)
    def look(at: str = "a") -> str:
        """Look."""
        return at

    @tool(effect="write", permission="capstan_catalog.change_element", destructive=True, registry=tools)
    def burn() -> str:
        """Burn it down."""
        return "burnt"

    from tests.chat.conftest import Chat

    def make(*answers: object) -> Chat:
        user = make_user(is_superuser=True)
        workspace = make_workspace(user)
        conversation = services.create_conversation(user=user, workspace=workspace, now=timezone.now())
        return Chat(user, workspace, conversation, ScriptedLLM(answers), tools)

    return make


# -- plans


def board_of(plan: ExecutionPlan) -> dict[str, str]:
    return ExecutionPlan.objects.get(pk=plan.pk).board


def asked_of(step: PlanStep) -> str:
    return StepMessage.objects.get(step=step, round=0).dynamic


def test_cap_073_a_killed_worker_leaves_the_board_of_its_steps_round(processes, openai_loopback, settings):
    settings.CAPSTAN_LEASE_SECONDS = 1
    model = openai_loopback(calls(call("catalog_overview"), text=f"I look first.\n{BLOCK}"))
    environment = {"CAPSTAN_LEASE_SECONDS": "1", "CAPSTAN_CRASH_AT": "loop.round_committed", **model.environment()}
    worker = processes.worker(environment=environment)
    plan = hold_plan(llm_step("one"), llm_step("two"))
    dispatcher().dispatch_after_commit(plan)
    assert worker.wait(60) == -signal.SIGKILL, worker.output
    assert board_of(plan) == BOARD
    assert statuses(plan) == {"one": "running", "two": "pending"}
    wait_until(lambda: ExecutionPlan.objects.take_due(), 10, what="the sweep finds the plan")
    llm = ScriptedLLM([say("One is seen."), say(f"Two is seen.\n{BAD}")])
    assert run_plan(plan, agents_on(llm)) == Left.ENDED
    one, two = PlanStep.objects.of(plan.pk)
    assert (one.llm_synthesis, two.llm_synthesis) == ("One is seen.", "Two is seen.")
    assert "Your board" not in asked_of(one)
    assert f"Your board: {json.dumps(BOARD)}" in asked_of(two)
    assert [event["status"] for event in events_of(plan, "blackboard")] == ["set", "retain"]
    assert board_of(plan) == BOARD
    assert not StepMessage.objects.filter(text__contains="<board>").exists()


@pytest.mark.django_db(transaction=True)
def test_cap_072_a_steps_board_that_the_database_cannot_hold_costs_no_synthesis():
    plan = hold_plan(llm_step("one"))
    assert run_plan(plan, agents_on(ScriptedLLM([say(f"One is seen.\n{BROKEN}")]))) == Left.ENDED
    assert [step.llm_synthesis for step in PlanStep.objects.of(plan.pk)] == ["One is seen."]
    assert (plan.status, board_of(plan)) == ("completed", MENDED)


@pytest.mark.django_db(transaction=True)
def test_cap_073_a_plan_that_its_worker_leaves_keeps_its_board_and_a_retry_takes_it_along():
    llm = ScriptedLLM([calls(call("look"), text=f"I look first.\n{BLOCK}"), say("One is seen."), say(BLOCK)])
    tools = Registry()

    @tool(effect="read", registry=tools)
    def look() -> str:
        """Look."""
        return "trees"

    plan = hold_plan(llm_step("one"), llm_step("two"))
    agents = agents_on(llm, look)
    assert run_plan(plan, agents, slice_s=0) == Left.HANDED_BACK
    assert (board_of(plan), StepMessage.objects.filter(round=2).count()) == (BOARD, 0)
    while run_plan(plan, agents) == Left.HANDED_BACK:
        pass
    two = PlanStep.objects.of(plan.pk)[1]
    assert (plan.status, two.status) == ("failed", "failed"), "a board alone is no synthesis"
    fork = steering.retry_plan(plan_id=plan.pk, by=plan.owner, now=timezone.now())
    assert board_of(fork) == BOARD


@pytest.mark.django_db(transaction=True)
def test_cap_071_no_reader_of_a_step_sees_its_board(redis):
    """Live, in the plan's result, and in what the next step is told."""
    text = f"One is seen.\n{BLOCK}"
    llm = ScriptedLLM([say(text, pieces=[text[:15], text[15:20], text[20:]]), say("Two.")])
    plan = hold_plan(llm_step("one"), llm_step("two"))
    told = redis.pubsub(ignore_subscribe_messages=True)
    told.subscribe(channel_of(plan.stream_id))
    told.get_message(timeout=5)
    while run_plan(plan, agents_on(llm)) == Left.HANDED_BACK:
        pass
    live = []
    while (message := told.get_message(timeout=0.5)) is not None:
        live += [json.loads(message["data"])] if message["data"] else []
    told.close()
    tokens = "".join(each["text"] for each in live if each["event"] == "token")
    assert tokens.split() == ["One", "is", "seen.", "Two."]
    steps = [event["synthesis"] for event in events_of(plan, "plan_step") if event.get("synthesis")]
    assert steps == ["One is seen.", "Two."]
    assert "<board>" not in llm.requests[1].messages[0].content
