"""What reaches the model beside the question: the board, plans that ended, and a fresh snapshot (CAP-038, 039, 072)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from chat.models import Conversation, HistorySummary
from chat.services import cancel_turn
from context.models import ScopeVersion
from llm.errors import LLMOverloaded
from llm.testing import call
from observability.models import AgentInteraction
from plan.models import ExecutionPlan, PlanStep
from tools.registry import Registry, tool
from tools.runs import ClockTimestamp


def layer_4(request) -> dict:
    return json.loads(request.messages[-1].content.split("<context>\n")[1].split("\n</context>")[0])


def board_of(it) -> dict:
    return Conversation.objects.get(pk=it.conversation.pk).board


def failed_plan(it) -> ExecutionPlan:
    return ExecutionPlan.objects.create(
        workspace=it.workspace,
        stream_id=it.conversation.pk,
        correlation_id="corr-1",
        status="failed",
        owner=it.user,
        identity="planner",
        goal="Refactor auth",
        conversation_id=it.conversation.pk,
        error="step look failed",
        ended_at=ClockTimestamp(),
    )


def told_plans(it) -> list[int]:
    """The plans that the newest request's layer 4 tells of."""
    return [plan["plan_id"] for plan in layer_4(it.llm.requests[-1]).get("plans_ended", ())]


def test_a_failed_plan_reaches_the_next_turn_once(chat):
    it = chat("one", "two", "three")
    it.say("Hello")
    plan = failed_plan(it)
    PlanStep.objects.create(plan=plan, key="look", order=1, action="Look", status="failed", error="no such module")
    it.say("What happened?")
    told = layer_4(it.llm.requests[1])["plans_ended"]
    assert [(p["plan_id"], p["status"], p["error"]) for p in told] == [(plan.pk, "failed", "step look failed")]
    assert told[0]["steps"] == [{"key": "look", "status": "failed", "error": "no such module"}]
    it.say("And now?")
    assert "plans_ended" not in layer_4(it.llm.requests[2])


@pytest.mark.parametrize("first", [True, False], ids=["before any answer", "behind an answer"])
def test_a_failed_plan_is_told_though_the_next_turn_was_cancelled_before_it_began(chat, first):
    it = chat("one", "two", "three")
    if not first:
        it.say("Hello")
    plan = failed_plan(it)
    silent = cancel_turn(turn_id=it.send("What ha").pk)
    assert silent.status == "cancelled"
    it.say("What happened?")
    assert told_plans(it) == [plan.pk]
    it.say("And now?")
    assert told_plans(it) == []


@pytest.mark.parametrize("apart", [timedelta(minutes=1), timedelta(minutes=-1)], ids=["ahead", "behind"])
def test_a_failed_plan_is_told_once_though_the_web_hosts_clock_is_wrong(chat, monkeypatch, apart):
    """A plan ends by the database's clock, a turn is made by its host's."""
    monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) + apart)
    it = chat("one", "two", "three")
    it.say("Hello")
    plan = failed_plan(it)
    it.say("What happened?")
    assert told_plans(it) == [plan.pk]
    it.say("And now?")
    assert told_plans(it) == []


def test_each_branch_is_told_of_an_ended_plan_and_of_no_more_than_five_at_once(chat):
    it = chat("one", "two", "three", "two, rather", "anew")
    first = it.say("Hello")
    plans = [failed_plan(it).pk for _ in range(6)]
    it.say("What happened?")
    assert told_plans(it) == plans[:0:-1]
    it.say("And now?")
    assert told_plans(it) == plans[:1]
    it.say("What happened, rather?", after_turn=first.pk)
    assert told_plans(it) == plans[:0:-1]
    it.say("Hello again", after_turn=None)
    assert told_plans(it) == plans[:0:-1]


def test_cap_041_older_turns_are_condensed_once_and_the_summary_stays(chat, settings):
    settings.CAPSTAN_LOOP = {"window_turns": 4}
    it = chat(*[f"A{n}" for n in range(1, 5)], "They spoke of one to three.", "A5", "A6")
    for n in range(1, 5):
        it.say(f"Q{n}")
    it.say("Q5")
    asked, answered = it.llm.requests[4], it.llm.requests[5]
    assert asked.tools == ()
    assert "Person: Q1" in asked.messages[0].content
    assert "Q4" not in asked.messages[0].content
    assert "<context>" not in asked.messages[0].content
    assert answered.messages[0].content.startswith(
        "(Earlier in this conversation, condensed:)\nThey spoke of one to three."
    )
    assert "Q3" not in answered.messages[0].content
    assert [m.content.split("\n")[0] for m in answered.messages[1:]] == ["A4", "Q5"]
    it.say("Q6")
    assert len(it.llm.requests) == 7  # made once
    assert it.llm.requests[6].messages[0].content == answered.messages[0].content
    summary = HistorySummary.objects.get()
    assert (summary.turns, summary.turn.question.text) == (3, "Q3")
    spent = AgentInteraction.objects.filter(owner_kind="turn", round=0, committed=True)
    assert [row.tier for row in spent] == ["execution"]


def test_a_summary_that_fails_costs_nothing_but_itself(chat, settings):
    settings.CAPSTAN_LOOP = {"window_turns": 2}
    it = chat("A1", "A2", LLMOverloaded(), "A3")
    for n in (1, 2):
        it.say(f"Q{n}")
    assert it.say("Q3").answer == "A3"
    assert "Q1" not in it.llm.requests[-1].messages[0].content
    assert AgentInteraction.objects.filter(error_code="llm.overloaded", committed=False).count() == 1


def test_a_question_too_large_for_the_window_is_refused_with_its_reason(chat, settings):
    settings.CAPSTAN_LOOP = {"window_tokens": 1_000}
    it = chat("never")
    turn = it.say("x" * 5_000)
    assert (turn.status, turn.stop_reason, it.llm.remaining) == ("failed", "chat.question_too_large", 1)
    assert "Shorten it" in turn.notice


def test_search_tools_are_accepted_while_the_snapshot_is_a_summary(chat, settings):
    registry = Registry()

    @tool(effect="read", chat="summary", registry=registry)
    def search(text: str) -> str:
        """Search."""
        return f"found {text}"

    it = chat(call("search", text="a"), "no", call("search", text="b"), "yes", tools=registry)
    it.say("look")
    assert "not exposed" in it.llm.requests[1].messages[-1].content
    settings.CAPSTAN_CONTEXT = {"budget_tokens": 5}
    ScopeVersion.objects.bump([it.workspace.pk])
    it.say("look again")
    assert layer_4(it.llm.requests[2])["snapshot"]["summary"]["reason"] == "over_budget"
    assert "found b" in it.llm.requests[3].messages[-1].content


def test_cap_042_history_of_another_context_stays_out(chat):
    it = chat("A1", "A2", "A3", context_type="repo", context_id="1")
    it.say("Q1")
    Conversation.objects.filter(pk=it.conversation.pk).update(context_id="2")
    it.say("Q2")
    assert "Q1" not in it.llm.requests[1].messages[0].content
    Conversation.objects.filter(pk=it.conversation.pk).update(context_id="1")
    it.say("Q3")
    assert [m.content.split("\n")[0] for m in it.llm.requests[2].messages] == ["Q1", "A1", "Q3"]
