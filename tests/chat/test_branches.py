"""Edits and new tries make siblings; the conversation keeps its active branch (CAP-041)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.utils import timezone

from chat import services
from chat.errors import FieldInvalid, TurnActive
from chat.models import Conversation, Message, Turn
from chat.queries import siblings_of, transcript_of
from events.models import Event
from llm.testing import ScriptedLLM, call
from tools.registry import Registry, tool


def shown(it) -> list[str]:
    return [row.text for row in transcript_of(Conversation.objects.get(pk=it.conversation.pk))]


def sent(it, number: int = -1) -> list[str]:
    return [m.content.split("\n\n<context>")[0] for m in it.llm.requests[number].messages]


def test_an_edit_makes_a_sibling_and_the_model_sees_its_branch_alone(chat):
    it = chat("A1", "A2", "A2b")
    it.say("Q1")
    it.say("Q2")
    first_answer = Message.objects.get(text="A1")
    edited = it.say("Q2 edited", parent_id=first_answer.pk)
    assert sent(it) == ["Q1", "A1", "Q2 edited"]
    assert shown(it) == ["Q1", "A1", "Q2 edited", "A2b"]
    rows = transcript_of(Conversation.objects.get(pk=it.conversation.pk))
    siblings = siblings_of(rows)
    old = Message.objects.get(text="Q2")
    assert siblings[rows[2].pk] == [old.pk, rows[2].pk]
    assert edited.after_id == first_answer.turn_id
    services.select_branch(conversation_id=it.conversation.pk, user=it.user, message_id=old.pk, correlation_id="c")
    assert shown(it) == ["Q1", "A1", "Q2", "A2"]


def test_another_try_answers_the_same_question_beside_the_old_answer(chat):
    it = chat("old", "new", "next")
    turn = it.say("Q")
    again = services.regenerate(
        turn_id=turn.pk, author=it.user, respond_async=False, correlation_id="c", now=timezone.now()
    )
    assert it.run(again).answer == "new"
    assert sent(it) == ["Q"]
    assert shown(it) == ["Q", "new"]
    answers = list(Message.objects.filter(role="assistant").order_by("pk"))
    assert siblings_of(answers)[answers[1].pk] == [a.pk for a in answers]
    assert Message.objects.filter(role="user").count() == 1
    assert it.say("And?").answer == "next"
    assert sent(it) == ["Q", "new", "And?"]
    services.select_branch(
        conversation_id=it.conversation.pk, user=it.user, message_id=answers[0].pk, correlation_id="c"
    )
    assert shown(it) == ["Q", "old"]


def test_an_edit_of_the_first_question_begins_anew(chat):
    it = chat("A1", "A1b")
    it.say("Q1")
    it.say("Q1 edited", parent_id=None)
    assert sent(it) == ["Q1 edited"]
    assert shown(it) == ["Q1 edited", "A1b"]


def test_a_parent_that_cannot_be_one_is_refused_by_name(chat):
    it, other = chat(call("no_such"), "A"), chat("B")
    it.say("Q")
    other.say("Q")
    inside = Message.objects.get(role="tool")
    for parent in (inside.pk, Message.objects.get(text="B").pk, 999_999):
        with pytest.raises(FieldInvalid) as caught:
            it.send("X", parent_id=parent)
        assert caught.value.details["field"] == "parent_id"
    assert Turn.objects.filter(conversation=it.conversation).count() == 1


def again(it, turn: Turn) -> Turn:
    return services.regenerate(
        turn_id=turn.pk, author=it.user, respond_async=False, correlation_id="c", now=timezone.now()
    )


def test_what_follows_a_try_that_said_nothing_can_be_edited_and_goes_on_from_its_question(chat):
    it = chat("A1", "A2", "A2b")
    silent = services.cancel_turn(turn_id=again(it, it.say("Q1")).pk)
    assert (silent.status, Message.objects.filter(turn=silent).count()) == ("cancelled", 0)
    following = it.say("Q2")
    question = Message.objects.get(text="Q1")
    assert Message.objects.get(text="Q2").parent_id == question.pk
    edited = it.say("Q2, rather", after_turn=silent.pk)
    assert (edited.after_id, following.after_id) == (silent.pk, silent.pk)
    assert sent(it) == ["Q1\n\nQ2, rather"]
    assert shown(it) == ["Q1", "Q2, rather", "A2b"]
    two = [Message.objects.get(text="Q2").pk, Message.objects.get(text="Q2, rather").pk]
    assert siblings_of(transcript_of(Conversation.objects.get(pk=it.conversation.pk)))[two[1]] == two


@pytest.mark.parametrize("named", [{"after_turn": 999_999}, {"after_turn": None, "parent_id": None}])
def test_a_turn_that_cannot_be_followed_is_refused_by_name(chat, named):
    it = chat("A")
    it.say("Q")
    with pytest.raises(FieldInvalid) as caught:
        it.send("X", **named)
    assert caught.value.details["field"] == "after_turn"
    assert Turn.objects.count() == 1


@pytest.mark.parametrize("mine", [True, False], ids=["my other conversation", "somebody else's"])
def test_a_turn_of_another_conversation_names_no_place_and_no_branch_in_this_one(chat, mine):
    it = chat("A")
    other = chat("B")
    if mine:
        conversation = services.create_conversation(user=it.user, workspace=it.workspace, now=timezone.now())
        other = replace(it, conversation=conversation, llm=ScriptedLLM(["B"]))
    shown_here, turn = it.say("Q"), other.say("Q")
    for after in (turn.pk, 10**30):
        with pytest.raises(FieldInvalid) as caught:
            it.send("X", after_turn=after)
        assert caught.value.details["field"] == "after_turn"
    named = {"turn_id": turn.pk}, {"turn_id": 10**30}, {"message_id": turn.question_id}, {"message_id": 10**30}
    for branch in named:
        with pytest.raises(FieldInvalid) as caught:
            services.select_branch(conversation_id=it.conversation.pk, user=it.user, correlation_id="c", **branch)
        assert caught.value.details["field"] in branch
    it.conversation.refresh_from_db()
    assert (it.conversation.active_turn_id, it.conversation.turns.count()) == (shown_here.pk, 1)
    assert not Event.objects.filter(stream=it.conversation.pk, name="branch_selected").exists()


def test_a_chosen_branch_is_announced_once_to_whoever_watches(chat):
    it = chat("A1", "A1b")
    first = it.say("Q1")
    retry = it.run(again(it, first))

    def select(**named: int) -> None:
        services.select_branch(conversation_id=it.conversation.pk, user=it.user, correlation_id="paged", **named)

    def told() -> list[tuple[int, str]]:
        rows = Event.objects.filter(stream=it.conversation.pk, name="branch_selected").order_by("seq")
        return [(row.payload["turn_id"], row.correlation_id) for row in rows]

    select(turn_id=retry.pk)  # it is shown already
    assert told() == []
    select(turn_id=first.pk)
    select(message_id=Message.objects.get(text="A1b").pk)
    assert told() == [(first.pk, "paged"), (retry.pk, "paged")]
    for named in ({}, {"turn_id": first.pk, "message_id": 1}, {"turn_id": 999_999}):
        with pytest.raises(FieldInvalid) as caught:
            select(**named)
        assert caught.value.details["field"] == "turn_id"
    silent = services.cancel_turn(turn_id=again(it, first).pk)
    select(turn_id=first.pk)
    select(turn_id=silent.pk)
    assert Conversation.objects.get(pk=it.conversation.pk).active_turn_id == silent.pk


WRITE = "capstan_workspaces.add_workspace"


@pytest.fixture
def guarded():
    registry = Registry()
    registry.done = []  # type: ignore[attr-defined]

    @tool(effect="write", permission=WRITE, destructive=True, registry=registry)
    def wipe(what: str) -> str:
        """Wipe it."""
        registry.done.append(what)  # type: ignore[attr-defined]
        return "wiped"

    @tool(effect="write", permission=WRITE, registry=registry)
    def note(text: str) -> str:
        """Note it."""
        registry.done.append(text)  # type: ignore[attr-defined]
        return "noted"

    return registry


def test_a_turn_that_waits_for_a_person_goes_on_with_the_decision(chat, guarded):
    from llm.testing import calls
    from tools.models import Approval
    from tools.services import decide

    it = chat(
        calls(call("note", text="before"), call("wipe", what="all"), call("note", text="after")), "done", tools=guarded
    )
    turn = it.say("wipe")
    assert (turn.status, turn.lease_until, guarded.done) == ("waiting_approval", None, ["before"])
    assert len(it.llm.requests) == 1  # parked without a further model call
    approval = Approval.objects.get()
    with pytest.raises(TurnActive) as caught:
        it.send("hello?")
    assert caught.value.details["approvals"] == [approval.pk]
    decide(approval_id=approval.pk, user=it.user, decision="approve", now=timezone.now(), tools=guarded)
    turn.refresh_from_db()
    assert turn.status == "queued"
    done = it.run(turn)
    assert (done.status, done.answer, guarded.done) == ("completed", "done", ["before", "all", "after"])
    results = [m for m in it.llm.requests[1].messages if m.role == "tool"]
    assert [m.tool_name for m in results] == ["note", "wipe", "note"]
    approval.refresh_from_db()
    assert approval.status == "executed"


def test_supersede_withdraws_what_is_waited_for_and_ends_the_turn(chat, guarded):
    from tools.models import Approval

    it = chat(call("wipe", what="all"), "fine", tools=guarded)
    waiting = it.say("wipe")
    assert waiting.status == "waiting_approval"
    turn = it.say("never mind", supersede=True)
    waiting.refresh_from_db()
    assert (waiting.status, waiting.stop_reason, Approval.objects.get().status) == (
        "cancelled",
        "superseded",
        "withdrawn",
    )
    assert (turn.answer, guarded.done) == ("fine", [])
    assert [m.role for m in it.llm.requests[1].messages] == ["user", "assistant", "tool", "user"]
    assert "interrupted" in it.llm.requests[1].messages[2].content


def test_supersede_does_not_end_a_turn_that_runs(chat):
    it = chat("a")
    turn = it.send("one")
    assert Turn.objects.claim(turn.pk, owner="somebody") is not None
    with pytest.raises(TurnActive):
        it.send("two", supersede=True)
