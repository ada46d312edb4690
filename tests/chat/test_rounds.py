"""In which order and in which transactions the calls of one message run (CAP-040, CAP-043, CAP-044; design § 5.3)."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
from django.db import connection

from chat.models import Message, Turn
from events.models import Event
from llm.testing import call, calls, say
from llm.types import LLMResponse
from observability.models import AgentInteraction
from plan.agent_tools import create_plan
from plan.models import ExecutionPlan
from prompt.types import Limits
from tests.chat.page_rows import signed_in
from tools.models import ToolExecution
from tools.registry import Registry, tool
from workspaces.models import Workspace

WRITE = "capstan_workspaces.add_workspace"


class Bench:
    """Tools that write down in which order they ran, and whether a transaction was open."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, bool]] = []
        self.registry = Registry([create_plan])
        self.together = threading.Barrier(2)
        log = self._log

        @tool(effect="read", chat=True, registry=self.registry)
        def look(at: str = "") -> dict[str, object]:
            """Look."""
            log(f"look {at}".strip())
            return {"seen": at, "spaces": Workspace.objects.filter(slug__startswith="made-").count()}

        @tool(effect="read", chat=True, registry=self.registry)
        def meet() -> str:
            """Come back only when two run side by side."""
            self.together.wait(10)
            return "met"

        @tool(effect="write", permission=WRITE, registry=self.registry)
        def make(slug: str) -> str:
            """Make a workspace."""
            log(f"make {slug}")
            Workspace.objects.create(slug=f"made-{slug}", name=slug)
            return slug

        @tool(effect="external", permission=WRITE, registry=self.registry)
        def send(to: str) -> str:
            """Send a letter."""
            row = ToolExecution.objects.get(tool_name="send", status="started")
            log(f"send {to} {row.position}")
            return "sent"

    def _log(self, what: str) -> None:
        self.ran.append((what, connection.in_atomic_block))


@pytest.fixture
def bench():
    return Bench()


def results(turn: Turn) -> list[tuple[int, int, str, bool]]:
    rows = Message.objects.filter(turn=turn, role="tool").order_by("round", "position")
    return [(row.round, row.position, row.tool_name, row.is_error) for row in rows]


def test_reads_before_the_first_write_run_side_by_side_outside_any_transaction(chat, bench):
    turn = chat(calls(call("meet"), call("meet")), "both", tools=bench.registry).say("go")
    assert turn.answer == "both"
    assert results(turn) == [(1, 1, "meet", False), (1, 2, "meet", False)]


def test_from_the_first_write_on_calls_run_one_by_one_in_the_transaction_and_see_each_other(chat, bench):
    asked = calls(call("look", at="before"), call("make", slug="a"), call("look", at="after"), call("make", slug="b"))
    it = chat(asked, "done", tools=bench.registry)
    turn = it.say("go")
    assert [what for what, _ in bench.ran] == ["look before", "make a", "look after", "make b"]
    assert [inside for what, inside in bench.ran if what != "look before"] == [True] * 3
    told = [m.content for m in it.llm.requests[1].messages if m.role == "tool"]
    assert '"spaces":0' in told[0]
    assert '"spaces":1' in told[2]
    assert ToolExecution.objects.filter(owner_id=turn.pk, status="succeeded").count() == 4
    assert Workspace.objects.filter(slug__startswith="made-").count() == 2


def test_an_external_call_runs_alone_between_two_commits(chat, bench):
    it = chat(
        calls(call("make", slug="a"), call("send", to="ann"), call("make", slug="b")), "done", tools=bench.registry
    )
    turn = it.say("go")
    assert [what for what, _ in bench.ran] == ["make a", "send ann 2", "make b"]
    assert [inside for what, inside in bench.ran] == [True, False, True]
    assert results(turn) == [(1, 1, "make", False), (1, 2, "send", False), (1, 3, "make", False)]
    beats = Event.objects.filter(stream=turn.stream_id, name__in=("tool_start", "tool_end")).order_by("seq")
    assert [(e.name, e.payload["position"]) for e in beats] == [
        ("tool_start", 1), ("tool_end", 1), ("tool_start", 2), ("tool_end", 2), ("tool_start", 3), ("tool_end", 3),
    ]  # fmt: skip


def plan_call(key: str = "a"):
    return call("create_plan", goal="Do it", steps=[{"key": key, "action": "Look", "is_critical": True}])


def test_cap_044_a_plan_is_made_after_the_other_calls_and_only_one_a_message(chat, bench):
    it = chat(calls(plan_call(), call("make", slug="a"), plan_call("b")), tools=bench.registry)
    turn = it.say("go")
    assert (turn.status, turn.stop_reason) == ("completed", "plan_created")
    assert ExecutionPlan.objects.count() == 1
    assert results(turn) == [(1, 1, "create_plan", False), (1, 2, "make", False), (1, 3, "create_plan", True)]
    assert turn.plan_id == ExecutionPlan.objects.get().pk
    assert AgentInteraction.objects.filter(owner_id=turn.pk).count() == 1


def test_cap_044_a_plan_that_cannot_be_held_goes_back_to_the_model(chat, bench):
    it = chat(call("create_plan", goal="Do it", steps=[]), plan_call(), tools=bench.registry)
    turn = it.say("go")
    assert turn.stop_reason == "plan_created"
    assert results(turn)[0] == (1, 1, "create_plan", True)
    assert ExecutionPlan.objects.count() == 1


def test_cap_044_the_handing_off_round_is_one_commit(chat, bench):
    """Somebody cancels while the plan is being made: none of plan, messages and acknowledgement is left."""
    it = chat(plan_call(), tools=bench.registry)
    turn = it.send("go")
    it.llm.when(lambda request: cancel(turn), plan_call())
    done = it.run(turn)
    assert (done.status, done.plan_id) == ("cancelled", None)
    assert ExecutionPlan.objects.count() == 0
    assert not Message.objects.filter(turn=turn, role="tool").exists()
    assert AgentInteraction.objects.get(owner_id=turn.pk).committed is False


def cancel(turn: Turn) -> bool:
    Turn.objects.request_cancel(turn.pk)
    return True


def test_cap_043_past_the_iterations_the_model_is_asked_once_for_its_final_answer(chat, bench):
    looks = [call("look", at=str(n)) for n in range(3)]
    it = chat(*looks, call("look", at="more"), tools=bench.registry, limits=Limits(iterations=3))
    turn = it.say("go")
    last = it.llm.requests[-1]
    assert (last.tool_choice, len(last.tools)) == ("none", len(it.llm.requests[0].tools))  # the tool list stays
    assert "final answer" in last.messages[-1].content
    assert (turn.status, turn.stop_reason, turn.answer) == ("completed", "iterations", "")
    assert "3 rounds" in turn.notice
    assert "empty" in turn.notice
    assert len(it.llm.requests) == 4
    assert Message.objects.get(turn=turn, role="note").round == 3


def test_cap_043_calls_past_the_limit_are_refused_and_the_answer_is_asked_for(chat, bench):
    it = chat(
        calls(*[call("look", at=str(n)) for n in range(5)]), "enough", tools=bench.registry, limits=Limits(tool_calls=3)
    )
    turn = it.say("go")
    assert [error for *_, error in results(turn)] == [False, False, False, True, True]
    assert (turn.answer, turn.stop_reason) == ("enough", "tool_calls")
    blocked = ToolExecution.objects.filter(owner_id=turn.pk, status="blocked")
    assert blocked.count() == 2


def test_cap_043_the_same_call_is_nudged_and_then_refused(chat, bench):
    same = [call("look", at="x") for _ in range(4)]
    it = chat(*same, "stuck", tools=bench.registry)
    turn = it.say("go")
    told = [m.content for m in it.llm.requests[-1].messages if m.role == "tool"]
    assert ["3 times" in text for text in told] == [False, False, True, True]
    assert [error for *_, error in results(turn)] == [False, False, False, True]
    assert len(bench.ran) == 3


def test_cap_043_tokens_and_cost_are_limits_too(chat, bench, settings):
    spend = {"input_tokens": 900, "output_tokens": 200}
    looking = calls(call("look"), usage=spend)
    turn = chat(looking, "short", tools=bench.registry, limits=Limits(tokens=1_000)).say("go")
    assert (turn.stop_reason, turn.answer) == ("tokens", "short")
    settings.CAPSTAN_PRICES = {"scripted": {"input": 100, "output": 100}}
    limits = Limits(cost_usd=Decimal("0.05"))
    turn = chat(calls(call("look"), usage=spend), "cheap", tools=bench.registry, limits=limits).say("go")
    assert (turn.stop_reason, turn.answer) == ("cost", "cheap")


def test_cap_043_past_its_time_the_turn_asks_for_the_answer(chat, bench):
    turn = chat("at once", tools=bench.registry, limits=Limits(turn_seconds=1e-9)).say("go")
    assert (turn.stop_reason, turn.answer) == ("wall_clock", "at once")


@pytest.mark.parametrize(
    ("answer", "stop_reason", "notice"),
    [
        (say("I will not.", stop_reason="refusal"), "refusal", "declined"),
        (say("And then the", stop_reason="max_tokens"), "max_tokens", "cut off"),
        (say("  "), "empty", "empty answer"),
        (LLMResponse(content="", stop_reason="max_tokens"), "max_tokens", "cut off"),
    ],
)
def test_a_refusal_a_truncation_and_an_empty_answer_are_shown_apart(chat, stand_in, answer, stop_reason, notice):
    turn = chat(answer).say("go")
    assert (turn.status, turn.stop_reason) == ("completed", stop_reason)
    assert notice in turn.notice
    ended = Event.objects.get(stream=turn.stream_id, name="turn_ended")  # what the open page draws
    assert ended.payload["notice"] == turn.notice
    page = signed_in(turn.user).get(f"/c/{turn.conversation_id}/").content.decode()  # and one that is opened later
    assert f'data-slot="notice">{turn.notice}</p>' in page


def test_a_pause_goes_on(chat):
    it = chat(say("First half,", stop_reason="pause"), "second half.")
    turn = it.say("go")
    assert turn.answer == "second half."
    assert [m.role for m in it.llm.requests[1].messages] == ["user", "assistant", "user"]


def test_a_tool_that_breaks_is_an_answer_not_an_exception(chat):
    registry = Registry()

    @tool(effect="write", permission=WRITE, registry=registry)
    def spoil(slug: str) -> str:
        """Write, then fail."""
        Workspace.objects.create(slug=f"made-{slug}", name="x")
        raise RuntimeError("broken")

    it = chat(calls(call("spoil", slug="a")), "sorry", tools=registry)
    turn = it.say("go")
    assert turn.answer == "sorry"
    assert results(turn) == [(1, 1, "spoil", True)]
    assert not Workspace.objects.filter(slug="made-a").exists()
    assert ToolExecution.objects.get(owner_id=turn.pk).status == "failed"
