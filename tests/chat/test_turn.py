"""A message, the turn that answers it, and the rows both leave."""

from __future__ import annotations

import threading
from datetime import timedelta
from decimal import Decimal

import pytest
from django.utils import timezone

from chat import services
from chat.errors import FieldInvalid, TurnActive
from chat.models import Message, Turn
from chat.queries import transcript_of
from chat.runner import WAITS
from chat.runs import cancel_orphan_turns
from chat.serializers import turn_json
from events.models import Event
from llm.errors import LLMAuthenticationError, RateLimitError
from llm.ports import CancelToken
from llm.retry import RetryingLLM, RetryPolicy, sleep
from llm.testing import Gate, ScriptedLLM, call, calls, cut, held, say
from observability.models import AgentInteraction
from plan.models import ExecutionPlan
from prompt.types import Limits
from tools.models import ToolExecution
from tools.registry import Registry, tool
from workspaces.errors import NotVisible


def names(turn: Turn) -> list[str]:
    return list(Event.objects.filter(stream=turn.stream_id).order_by("seq").values_list("name", flat=True))


def test_a_message_is_answered_and_everything_is_a_row(chat):
    it = chat(say("Good morning.", usage={"input_tokens": 12, "output_tokens": 4}))
    turn = it.say("Hello there")
    assert (turn.status, turn.answer, turn.stop_reason, turn.model_used) == (
        "completed",
        "Good morning.",
        "end_turn",
        "scripted",
    )
    it.conversation.refresh_from_db()
    assert it.conversation.title == "Hello there"
    assert [(m.role, m.text) for m in transcript_of(it.conversation)] == [
        ("user", "Hello there"),
        ("assistant", "Good morning."),
    ]
    row = AgentInteraction.objects.get(owner_kind="turn", owner_id=turn.pk)
    assert (row.input_tokens, row.output_tokens, row.correlation_id, row.committed) == (12, 4, "corr-1", True)
    assert row.conversation_id == it.conversation.pk
    assert names(turn) == ["turn_queued", "typing", "ai_message", "turn_ended"]
    assert Event.objects.filter(stream=turn.stream_id).exclude(correlation_id="corr-1").count() == 0


def test_layer_4_goes_last_into_the_newest_message_and_an_unchanged_snapshot_is_not_repeated(chat):
    it = chat("one", "two")
    it.say("first")
    it.say("second")
    first, second = it.llm.requests
    assert all("snapshot" not in block.text or "<context>" not in block.text for block in first.system)
    assert first.messages[-1].content.startswith("first\n\n<context>")
    assert '"snapshot":' in first.messages[-1].content
    assert second.messages[0].content == first.messages[0].content  # replayed byte for byte
    assert '"snapshot":' not in second.messages[-1].content
    assert '"snapshot_version":' in second.messages[-1].content


def test_a_refused_call_leaves_a_blocked_row_and_the_model_is_told(chat):
    it = chat(call("no_such_tool", x=1), "I cannot do that.")
    turn = it.say("do it")
    row = ToolExecution.objects.get(owner_kind="turn", owner_id=turn.pk)
    assert (row.status, row.round, row.position) == ("blocked", 1, 1)
    told = it.llm.requests[1].messages
    assert [m.role for m in told] == ["user", "assistant", "tool"]
    assert told[-1].is_error
    assert "unknown tool" in told[-1].content
    assert names(turn) == [
        "turn_queued",
        "typing",
        "ai_message",
        "tool_start",
        "tool_end",
        "ai_message",
        "turn_ended",
    ]


def test_create_plan_ends_the_turn_in_one_commit_without_a_further_model_call(chat):
    it = chat(
        call(
            "create_plan", goal="Refactor auth", steps=[{"key": "look", "action": "Look at auth", "is_critical": True}]
        )
    )
    turn = it.say("Plan it")
    plan = ExecutionPlan.objects.get()
    assert (turn.status, turn.stop_reason, turn.plan_id) == ("completed", "plan_created", plan.pk)
    assert str(plan.pk) in turn.answer
    assert it.llm.remaining == 0
    assert (plan.turn_id, plan.conversation_id, plan.correlation_id) == (turn.pk, it.conversation.pk, "corr-1")
    assert [m.role for m in transcript_of(it.conversation.__class__.objects.get(pk=it.conversation.pk))] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert names(turn)[-2:] == ["ai_message", "turn_ended"]
    assert "plan_created" in names(turn)


def test_a_second_message_while_a_turn_runs_is_refused_and_names_the_turn(chat):
    it = chat("late")
    turn = it.send("first")
    with pytest.raises(TurnActive) as caught:
        it.send("second")
    assert caught.value.details["turn_id"] == turn.pk
    with pytest.raises(TurnActive):
        services.delete_conversation(conversation_id=it.conversation.pk, user=it.user)


@pytest.mark.parametrize("text", ["", "   \n", "x" * 32_001, "a\x00b"])
def test_text_that_cannot_be_sent_names_the_field(chat, text):
    with pytest.raises(FieldInvalid) as caught:
        chat("never").send(text)
    assert caught.value.details["field"] == "text"
    assert Turn.objects.count() == 0


def test_somebody_elses_conversation_is_not_there(chat):
    mine, theirs = chat("a"), chat("b")
    with pytest.raises(NotVisible):
        services.send_message(
            conversation_id=theirs.conversation.pk,
            author=mine.user,
            text="hi",
            respond_async=False,
            correlation_id="c",
            now=timezone.now(),
        )


def test_a_provider_that_asks_to_wait_sends_the_turn_back_to_the_queue(chat):
    it = chat(RateLimitError(retry_after_s=40), "there you are")
    turn = it.say("hi")
    assert (turn.status, turn.rate_limit_waits, turn.attempts) == ("queued", 1, 0)
    assert 30 < (turn.not_before - timezone.now()).total_seconds() <= 40
    assert names(turn)[-1] == "rate_limit"
    assert (turn.notice, turn_json(turn)["notice"]) == (WAITS.format(seconds=40),) * 2
    assert it.run(turn).status == "queued"  # not due: the claim refuses it
    Turn.objects.filter(pk=turn.pk).update(not_before=timezone.now())
    done = it.run(turn)
    assert (done.status, done.answer, done.notice) == ("completed", "there you are", "")
    paid = AgentInteraction.objects.filter(owner_id=turn.pk).order_by("pk").values_list("error_code", "committed")
    assert list(paid) == [("llm.rate_limited", False), ("", True)]


def test_a_turn_that_goes_on_says_no_more_that_it_waits(chat):
    tools, seen = Registry(), []

    @tool(effect="read", chat=True, registry=tools)
    def look() -> str:
        """Look."""
        seen.extend(Turn.objects.values_list("notice", flat=True))
        return "seen"

    it = chat(RateLimitError(retry_after_s=40), call("look"), "there you are", tools=tools)
    turn = it.say("hi")
    assert turn.notice == WAITS.format(seconds=40)
    Turn.objects.filter(pk=turn.pk).update(not_before=timezone.now())
    assert (it.run(turn).status, seen) == ("completed", [""])


def test_a_failed_model_call_ends_the_turn_with_words_for_people(chat):
    turn = chat(LLMAuthenticationError()).say("hi")
    assert (turn.status, turn.stop_reason) == ("failed", "llm.authentication")
    assert "key" in turn.notice
    assert names(turn)[-1] == "turn_ended"


def test_a_cut_stream_keeps_what_arrived_marked_as_partial(chat):
    it = chat(cut("Half an ans", LLMAuthenticationError()), "again")
    turn = it.say("hi")
    row = Message.objects.get(turn=turn, role="assistant")
    assert (row.text, row.partial, turn.answer) == ("Half an ans", True, "Half an ans")
    assert it.say("go on").status == "completed"
    assert "cut off here" in it.llm.requests[1].messages[1].content


def test_cancel_stops_a_running_model_call_and_keeps_its_text(chat):
    gate = Gate()
    it = chat(say("One two three", gate=gate, gate_after=2))
    turn = it.send("count")
    done: list[Turn] = []
    worker = threading.Thread(target=lambda: done.append(closing(it.run, turn)))
    worker.start()
    assert gate.reached.wait(10)
    assert services.cancel_turn(turn_id=turn.pk).status == "running"  # its owner ends it
    worker.join(10)
    assert (done[0].status, done[0].answer, done[0].stop_reason) == ("cancelled", "One two ", "cancelled")
    row = AgentInteraction.objects.get(owner_id=turn.pk)
    assert (row.error_code, row.committed) == ("llm.cancelled", False)
    assert services.cancel_turn(turn_id=turn.pk).status == "cancelled"


def test_cancelling_a_turn_that_nobody_runs_ends_it_at_once(chat):
    it = chat("never asked")
    turn = services.cancel_turn(turn_id=it.send("hi").pk)
    assert (turn.status, names(turn)[-1]) == ("cancelled", "turn_ended")
    assert cancel_orphan_turns() == []


def test_a_turn_that_takes_too_long_for_its_request_is_handed_back(chat):
    gate = Gate()
    it = chat(held(gate, "late"), "late")
    turn = it.run(it.send("hi"), sync_seconds=0.2)
    assert (turn.status, turn.attempts) == ("queued", 0)
    gate.open()
    assert it.run(turn).answer == "late"


def test_a_turn_that_waits_out_its_providers_back_off_is_handed_back_too(chat):
    it = chat("unused")

    def its_time_is_over_meanwhile(_seconds: float, cancel: CancelToken) -> None:
        threading.Thread(target=cancel.cancel, args=["handover"]).start()
        sleep(3_600, cancel)  # woken at once, whichever of the two comes first

    script = ScriptedLLM([RateLimitError(retry_after_s=3.5), say("At last.")])
    it.llm = RetryingLLM(script, RetryPolicy(), pause=its_time_is_over_meanwhile)
    turn = it.run(it.send("hi"))
    assert (turn.status, turn.attempts, len(script.requests)) == ("queued", 0, 1)
    it.llm = script
    assert it.run(turn).answer == "At last."


def test_a_turn_goes_on_from_its_stored_reply(chat):
    """A process that died after the calls were stored: the model is not asked for that reply again."""
    it = chat(calls(call("no_such_tool"), call("another")), "done")
    turn = it.send("hi")
    it.run(turn)
    turn.refresh_from_db()
    # take the turn back to where a crash between two results would have left it
    Message.objects.filter(turn=turn, round=1, position=2).delete()
    Message.objects.filter(turn=turn, round=2).delete()
    ToolExecution.objects.filter(owner_id=turn.pk, position=2).delete()
    Turn.objects.filter(pk=turn.pk).update(status="queued", ended_at=None, answer="", stop_reason="")
    it.llm.when(lambda request: True, "after the crash")
    done = it.run(turn)
    assert (done.status, done.answer) == ("completed", "after the crash")
    assert [m.role for m in it.llm.requests[-1].messages] == ["user", "assistant", "tool", "tool"]
    assert "interrupted" not in it.llm.requests[-1].messages[-1].content
    assert ToolExecution.objects.filter(owner_id=turn.pk).count() == 2


def closing(run, turn):
    from django.db import connection

    try:
        return run(turn)
    finally:
        connection.close()


def test_beginning_a_turn_is_no_progress(chat):
    """A turn that kills its process in each model call must reach the attempts' cap, not begin anew for ever."""

    def dies(_request):
        raise KeyboardInterrupt  # as close to a killed process as a thread gets: nothing after it runs

    talk = chat(dies, dies, dies)
    turn = talk.send("Hello?")
    for attempt in (0, 1, 2):  # layer 4, stored once, was progress
        with pytest.raises(KeyboardInterrupt):
            talk.run(turn)
        Turn.objects.filter(pk=turn.pk).update(lease_until=timezone.now() - timedelta(hours=1))
        turn.refresh_from_db()
        assert turn.attempts == attempt


def test_a_cost_limit_is_not_silently_off_where_the_price_is_unknown(chat):
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look() -> str:
        """Look around."""
        return "trees"

    talk = chat(call("look"), say("As far as I got."), tools=registry, limits=Limits(cost_usd=Decimal("0.01")))
    turn = talk.say("Look.")
    assert turn.stop_reason == "cost_unknown"
    assert "CAPSTAN_PRICES" in turn.notice


def test_a_reply_that_is_nothing_but_a_board_is_told_as_empty(chat):
    it = chat('<board>{"phase": "explore"}</board>')
    turn = it.run(it.send("hi"))
    assert (turn.status, turn.answer, turn.stop_reason) == ("completed", "", "empty")
    assert turn.notice == "The model gave an empty answer."
