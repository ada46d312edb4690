"""The pages as Django serves them: who sees what, and that no text can act."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chat import services
from chat.models import Conversation
from chat.page_queries import SHOWN_CHARACTERS, plan_views, transcript_view
from chat.templatetags.chat_pages import inline_code, milliseconds
from events.models import EventRecord, Stream
from events.types import EventName
from factory.tiers import llm_settings
from plan.models import ExecutionPlan, PlanStep
from tests.chat.page_rows import HOSTILE, Page, asked, called, cannot_act, ended_turn, finished_plan, signed_in
from tests.support.runs import make_conversation, make_plan, make_user
from workspaces.models import Membership, User

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def stand_in(settings: Any) -> Iterator[None]:
    """Pages ask which model is connected; the stand-in is one for DEBUG alone."""
    settings.DEBUG = True
    llm_settings.cache_clear()
    yield
    llm_settings.cache_clear()


@pytest.mark.parametrize("path", ["/", "/plans/1/", "/c/00000000-0000-0000-0000-000000000000/", "/calls/turn:1/1/1/"])
def test_who_is_not_signed_in_is_asked_to(path: str) -> None:
    response = Client().get(path)
    assert (response.status_code, unquote(response["Location"])) == (302, f"/login/?next={path}")


def test_signing_in_leads_to_where_one_was_going_and_nowhere_else() -> None:
    User.objects.create_user("ada", password="correct horse")
    form = {"username": "ada", "password": "correct horse"}
    assert Client().post("/login/", {**form, "next": "/plans/4/"})["Location"] == "/plans/4/"
    assert Client().post("/login/", {**form, "next": "https://evil.example/"})["Location"] == "/"
    refused = Client().post("/login/", {**form, "password": "wrong"})
    assert "do not belong together" in refused.content.decode()
    assert "wrong" not in refused.content.decode()


def test_signing_out_takes_a_post() -> None:
    client = signed_in(make_user())
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302


def test_every_page_carries_the_policy_and_none_needs_an_exception() -> None:
    conversation = make_conversation()
    turn = ended_turn(conversation, "q", "a")
    plan = finished_plan(conversation, turn=turn)
    client = signed_in(conversation.user)
    for path in ("/", f"/c/{conversation.pk}/", f"/plans/{plan.pk}/", "/plans/99999999/"):
        response = client.get(path)
        assert "script-src 'self'" in response["Content-Security-Policy"]
        assert "unsafe" not in response["Content-Security-Policy"]
        assert response["Cache-Control"] == "no-store"
        cannot_act(response.content)


def test_a_conversation_shows_its_turns_with_calls_plan_and_notice() -> None:
    conversation = make_conversation()
    ended_turn(conversation, "the first question", "the *first* answer")
    turn = ended_turn(conversation, "the second question", "# A heading", notice="The limit was reached.")
    called("turn", turn.pk, conversation, duration_ms=2_140)
    called("turn", turn.pk, conversation, position=2, status="blocked", error="not allowed in chat")
    finished_plan(conversation, turn=turn, text="Look at `auth`")
    page = cannot_act(signed_in(conversation.user).get(f"/c/{conversation.pk}/").content)
    pieces = [
        "the first question",
        "first",
        "the second question",
        "A heading",
        "Search things",
        "2.1 s",
        "not allowed",
    ]
    pieces += ["Look at", "2 of 2", "The limit was reached."]
    places = [page.text.lower().index(piece.lower()) for piece in pieces]
    assert places == sorted(places)
    marked = {
        attributes["data-tool"]: attributes["data-state"]
        for _tag, attributes in page.tags
        if attributes.get("data-tool")
    }
    assert marked == {f"turn:{turn.pk}/1/1": "done", f"turn:{turn.pk}/1/2": "blocked"}


def test_the_page_says_where_its_stream_goes_on() -> None:
    conversation = make_conversation()
    Stream.objects.append(conversation.pk, [EventRecord(EventName.TYPING, {})] * 3, correlation_id="c")
    page = Page(signed_in(conversation.user).get(f"/c/{conversation.pk}/").content)
    thread = next(attributes for _tag, attributes in page.tags if attributes.get("data-page") == "conversation")
    assert thread["data-last-id"] == f"3-{conversation.pk.hex[:8]}"
    assert thread["data-stream"] == f"/api/conversations/{conversation.pk}/stream/"


def test_a_call_that_waits_shows_all_its_arguments_and_its_decision_to_who_may_take_it() -> None:
    conversation = make_conversation()
    turn = ended_turn(conversation, "q", "a")
    long = "x" * (2 * SHOWN_CHARACTERS)
    card = asked("turn", turn.pk, conversation, summary=HOSTILE[:500], arguments={"text": long}, destructive=True)
    decider = make_user(is_superuser=True)
    Membership.objects.create(user=decider, workspace=conversation.workspace)
    for path in (f"/c/{conversation.pk}/", f"/approvals/{card.pk}/"):
        for who, buttons in ((conversation.user, 0), (decider, 2)):
            body = signed_in(who).get(path).content
            page = cannot_act(body)
            assert long in page.text
            assert "Cannot be undone" in page.text
            assert len([1 for tag, each in page.tags if tag == "button" and each.get("name") == "decision"]) == buttons
    stranger = make_user()
    Membership.objects.create(user=stranger, workspace=conversation.workspace)
    assert signed_in(stranger).get(f"/approvals/{card.pk}/").status_code == 404


def test_a_decision_stays_on_the_page() -> None:
    conversation = make_conversation()
    turn = ended_turn(conversation, "q", "a")
    plan = finished_plan(conversation, turn=turn)
    step = plan.steps.get(key="first")
    decision = {
        "status": "rejected",
        "decided_at": timezone.now(),
        "decided_by": conversation.user,
        "note": "not today",
    }
    asked("step", step.pk, conversation, plan_id=plan.pk, edited_arguments={"key": "k2"}, **decision)
    for path in (f"/c/{conversation.pk}/", f"/plans/{plan.pk}/"):
        page = cannot_act(signed_in(conversation.user).get(path).content)
        assert f"Rejected by {conversation.user.get_username()}" in page.text
        assert "not today" in page.text
        assert '"key": "k2"' in page.text


def test_no_text_can_act_wherever_it_comes_from() -> None:
    conversation = make_conversation()
    Conversation.objects.filter(pk=conversation.pk).update(title=HOSTILE[:200])
    turn = ended_turn(conversation, HOSTILE, HOSTILE, notice=HOSTILE)
    called("turn", turn.pk, conversation, tool_name=HOSTILE[:128], error=HOSTILE, arguments={HOSTILE: HOSTILE})
    plan = finished_plan(conversation, turn=turn, text=HOSTILE)
    ExecutionPlan.objects.filter(pk=plan.pk).update(error=HOSTILE)
    client = signed_in(conversation.user)
    for path in (f"/c/{conversation.pk}/", f"/plans/{plan.pk}/", f"/calls/turn:{turn.pk}/1/1/", "/"):
        page = cannot_act(client.get(path).content)
        assert "<script>alert(1)</script>" in page.text or path == "/"  # shown as it was written
        assert "14" not in page.text.split("{{ 7|add:7 }}")[-1][:5]


def test_another_users_pages_are_not_there() -> None:
    conversation = make_conversation()
    turn = ended_turn(conversation, "a secret", "b")
    called("turn", turn.pk, conversation)
    plan = finished_plan(conversation, turn=turn)
    stranger = make_user()
    Membership.objects.create(user=stranger, workspace=conversation.workspace)
    for path in (f"/c/{conversation.pk}/", f"/plans/{plan.pk}/", f"/calls/turn:{turn.pk}/1/1/"):
        response = signed_in(stranger).get(path)
        assert response.status_code == 404
        assert "secret" not in response.content.decode()
        assert signed_in(conversation.user).get(path).status_code == 200


def test_who_has_left_the_workspace_sees_nothing_of_it() -> None:
    conversation = make_conversation()
    plan = finished_plan(conversation)
    Membership.objects.filter(user=conversation.user).delete()
    client = signed_in(conversation.user)
    assert [client.get(path).status_code for path in (f"/c/{conversation.pk}/", f"/plans/{plan.pk}/")] == [404, 404]
    assert str(conversation.pk) not in client.get("/").content.decode()


def test_who_may_see_all_reads_but_does_not_write() -> None:
    conversation = make_conversation()
    ended_turn(conversation, "hello", "there")
    admin = make_user(is_superuser=True)
    Membership.objects.create(user=admin, workspace=conversation.workspace)
    page = signed_in(admin).get(f"/c/{conversation.pk}/").content.decode()
    assert "hello" in page
    assert "you may read it" in page
    assert "<textarea" not in page


def test_a_call_is_shown_with_what_went_in_and_came_out() -> None:
    conversation = make_conversation()
    turn = ended_turn(conversation, "q", "a")
    called("turn", turn.pk, conversation, arguments={"query": "auth"}, result={"found": "x" * 2 * SHOWN_CHARACTERS})
    text = Page(signed_in(conversation.user).get(f"/calls/turn:{turn.pk}/1/1/").content).text
    assert '"query": "auth"' in text
    assert "cut here" in text
    assert len(text) < SHOWN_CHARACTERS + 500


def test_the_stand_in_is_named_on_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = make_conversation()
    client = signed_in(conversation.user)
    pages = [(Client(), "/login/"), (client, "/"), (client, f"/c/{conversation.pk}/")]
    assert all("No model is connected." in who.get(path).content.decode() for who, path in pages)
    monkeypatch.setenv("LLM_PROVIDER", "ollama")
    monkeypatch.setenv("LLM_OLLAMA_MODEL", "some-model")
    llm_settings.cache_clear()
    assert not any("No model is connected." in who.get(path).content.decode() for who, path in pages)


def test_more_turns_and_plans_cost_no_more_queries() -> None:
    conversation = make_conversation()

    def grow() -> None:
        turn = ended_turn(conversation, "q", "a")
        called("turn", turn.pk, conversation)
        finished_plan(conversation, turn=turn)

    grow()
    with CaptureQueriesContext(
        connection,
    ) as few:
        transcript_view(conversation, reader=conversation.user)
    for _ in range(5):
        grow()
    with CaptureQueriesContext(connection) as many:
        shown = transcript_view(conversation, reader=conversation.user)
    assert len(shown.turns) == 6
    assert len(many) == len(few)


def test_a_long_conversation_opens_at_its_end() -> None:
    conversation = make_conversation()
    for number in range(103):
        ended_turn(conversation, f"question {number}", "a")
    shown = transcript_view(conversation, reader=conversation.user)
    assert (len(shown.turns), shown.left_out, shown.turns[0].question) == (100, 3, "question 3")
    client = signed_in(conversation.user)
    assert "3 earlier questions" in client.get(f"/c/{conversation.pk}/").content.decode()
    assert "question 0" in client.get(f"/c/{conversation.pk}/?all").content.decode()


def test_a_new_chat_offers_a_workspace_only_where_there_is_a_choice() -> None:
    user = make_user()
    client = signed_in(user)
    assert "You belong to no workspace yet" in client.get("/").content.decode()
    conversation = make_conversation(user=user)
    assert "<select" not in client.get("/").content.decode()
    Membership.objects.create(user=user, workspace=make_conversation().workspace)
    page = client.get("/").content.decode()
    assert f'<option value="{conversation.workspace.slug}">' in page
    assert "Analyse the auth module and propose a refactor plan" in page


def test_a_plan_that_only_moved_data_shows_its_last_result() -> None:
    conversation = make_conversation()
    plan = make_plan(owner=conversation.user, workspace=conversation.workspace)
    PlanStep.objects.create(
        plan=plan, key="a", order=1, kind="data", action="x", status="completed", result_json={"n": 7}
    )
    ExecutionPlan.objects.filter(pk=plan.pk).update(status="completed", ended_at=timezone.now())
    [view] = plan_views(ExecutionPlan.objects.filter(pk=plan.pk), reader=conversation.user)
    assert "7" in view.html


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (65_400, "1 min 05 s"), (None, ""), ("", "")]
)
def test_times_are_read_by_people(value: object, text: str) -> None:
    assert milliseconds(value) == text


def test_code_in_a_line_is_set_as_code_and_nothing_else() -> None:
    assert inline_code("Look at `a<b>` & <i>") == "Look at <code>a&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert inline_code("a ` b") == "a ` b"


def test_a_message_that_was_sent_is_on_the_page_before_anybody_answered() -> None:
    conversation = make_conversation()
    services.send_message(
        conversation_id=conversation.pk,
        author=conversation.user,
        text="not answered yet",
        respond_async=False,
        correlation_id="c",
        now=timezone.now(),
    )
    body = signed_in(conversation.user).get(f"/c/{conversation.pk}/").content.decode()
    assert "not answered yet" in body
    assert "Waiting for a worker" in body
    assert re.search(r'data-status="queued"', body)


def test_a_plan_that_ends_while_its_page_is_made_is_drawn_as_ended() -> None:
    """Its last event is not behind the page's `last_id`, so the page itself has to say it."""
    conversation = make_conversation()
    plan = finished_plan(conversation)
    ExecutionPlan.objects.filter(pk=plan.pk).update(status="running", ended_at=None, lease_until=timezone.now())
    ends: list[bool] = []

    def ending(execute: Any, sql: str, *rest: Any) -> Any:
        if '"last_seq" FROM' in sql.replace(" AS", "") and not ends:
            ends.append(True)
            ExecutionPlan.objects.filter(pk=plan.pk).update(status="completed", ended_at=timezone.now())
        return execute(sql, *rest)

    client = signed_in(conversation.user)
    with connection.execute_wrapper(ending):
        body = client.get(f"/plans/{plan.pk}/").content.decode()
    assert ends
    drawn = json.loads(body.split('<script id="plan-graph" type="application/json">')[1].split("</script>")[0])
    assert (drawn["status"], drawn["ended_at"] is None) == ("completed", False)


def test_a_plan_shows_its_board_where_there_is_one() -> None:
    conversation = make_conversation()
    plan = finished_plan(conversation)
    client = signed_in(conversation.user)
    hidden = '<section class="plan-board" data-plan-board aria-labelledby="plan-board" hidden>'
    assert hidden in client.get(f"/plans/{plan.pk}/").content.decode()
    ExecutionPlan.objects.filter(pk=plan.pk).update(board={"next_intent": HOSTILE})
    body = client.get(f"/plans/{plan.pk}/").content
    assert hidden not in body.decode()
    page = cannot_act(body)
    assert HOSTILE in page.text
    assert "Next intent" in page.text
