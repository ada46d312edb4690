"""What a page draws around a turn: its versions, what an edit goes on from, and the board."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone

from chat import services
from chat.models import Conversation, Message, Turn
from chat.page_branches import BranchView, Pager, board_lines, branch_views
from chat.queries import branch_of
from events.models import Event
from factory.tiers import llm_settings
from tests.chat.page_rows import HOSTILE, cannot_act, ended_turn, signed_in
from tests.support.runs import make_conversation, make_user
from workspaces.models import Membership

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def stand_in(settings: Any) -> Iterator[None]:
    """Pages ask which model is connected; the stand-in is one for DEBUG alone."""
    settings.DEBUG = True
    llm_settings.cache_clear()
    yield
    llm_settings.cache_clear()


def send(conversation: Conversation, text: str, **options: Any) -> Turn:
    return services.send_message(
        conversation_id=conversation.pk,
        author=conversation.user,
        text=text,
        respond_async=False,
        correlation_id="c",
        now=timezone.now(),
        **options,
    )


def again(turn: Turn) -> Turn:
    return services.regenerate(
        turn_id=turn.pk, author=turn.user, respond_async=False, correlation_id="c", now=timezone.now()
    )


def end(turn: Turn, answer: str = "") -> int | None:
    """The key of its reply, if it gets one."""
    Turn.objects.filter(pk=turn.pk).update(status="completed", ended_at=timezone.now())
    if not answer:
        return None
    question = Turn.objects.get(pk=turn.pk).question
    return Message.objects.create(
        conversation=turn.conversation, turn=turn, parent=question, role="assistant", round=1, text=answer
    ).pk


def view(turn: Turn) -> BranchView:
    return branch_views(branch_of(turn.pk))[turn.pk]


def test_a_turn_without_alternatives_has_no_pagers() -> None:
    conversation = make_conversation()
    first = send(conversation, "Q1")
    end(first, "A1")
    second = send(conversation, "Q2")
    assert view(first) == BranchView(after="none")
    assert view(second) == BranchView(after=str(first.pk))
    assert branch_views([]) == {}


def test_tries_and_edits_are_counted_apart_and_lead_to_each_other() -> None:
    conversation = make_conversation()
    first = send(conversation, "Q1")
    end(first, "A1")
    retry = again(first)
    end(retry, "A2")
    edited = send(conversation, "Q1, rather", parent_id=None)
    end(edited, "A3")
    assert view(first).answers == Pager(number=1, count=2, before=None, after=retry.pk)
    assert view(retry).answers == Pager(number=2, count=2, before=first.pk, after=None)
    assert view(retry).questions == Pager(number=1, count=2, before=None, after=edited.pk)
    assert view(edited) == BranchView(after="none", questions=Pager(number=2, count=2, before=retry.pk, after=None))
    services.select_branch(
        conversation_id=conversation.pk, user=conversation.user, turn_id=retry.pk, correlation_id="c"
    )
    assert Conversation.objects.get(pk=conversation.pk).active_turn_id == retry.pk


def test_a_try_that_said_nothing_is_a_version_too_and_what_follows_it_can_be_edited() -> None:
    conversation = make_conversation()
    first = send(conversation, "Q1")
    end(first, "A1")
    silent = again(first)
    end(silent)
    assert view(silent).answers == Pager(number=2, count=2, before=first.pk, after=None)
    assert view(first).answers == Pager(number=1, count=2, before=None, after=silent.pk)
    following = send(conversation, "Q2")
    assert view(following).after == str(silent.pk)


def test_a_question_that_begins_a_branch_says_so_on_the_stream() -> None:
    conversation = make_conversation()
    first = send(conversation, "Q1")
    reply = end(first, "A1")
    second = send(conversation, "Q2")
    told = [event.payload for event in Event.objects.filter(stream=conversation.pk, name="turn_queued").order_by("seq")]
    assert [(each["after_id"], each["parent_id"]) for each in told] == [(None, None), (first.pk, reply)]
    assert second.after_id == first.pk


def test_the_board_is_drawn_in_order_and_cannot_act() -> None:
    conversation = make_conversation()
    ended_turn(conversation, "Hello", "Hi.")
    client = signed_in(conversation.user)
    empty = client.get(f"/c/{conversation.pk}/").content
    assert b'data-start="empty"' in empty
    Conversation.objects.filter(pk=conversation.pk).update(board={"next_intent": HOSTILE, "phase": "exploring"})
    body = client.get(f"/c/{conversation.pk}/").content
    page = cannot_act(body)
    assert HOSTILE in page.text
    assert b'data-start="empty"' not in body
    conversation.refresh_from_db()
    assert [(line.label, bool(line.value)) for line in board_lines(conversation.board)] == [
        ("Phase", True),
        ("Hypothesis", False),
        ("Current plan", False),
        ("Last actions", False),
        ("Next intent", True),
    ]


def test_who_may_only_read_a_chat_gets_no_controls() -> None:
    conversation = make_conversation()
    ended_turn(conversation, "Hello", "Hi.")
    chief = make_user(is_superuser=True)
    Membership.objects.create(workspace=conversation.workspace, user=chief)
    own = signed_in(conversation.user).get(f"/c/{conversation.pk}/").content
    other = signed_in(chief).get(f"/c/{conversation.pk}/").content
    for action in (b"edit-question", b"answer-again", b"data-edit"):
        assert (action in own, action in other) == (True, False)
