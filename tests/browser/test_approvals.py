"""A card in the chat: it comes live, says all that would be done, and takes the decision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import transaction
from playwright.sync_api import Browser, expect

from catalog.models import Element, Repository
from chat.models import Message, Turn
from events.models import EventRecord, Stream
from events.types import EventName
from streaming.signals import wake
from tests.browser.conftest import Reader
from tests.chat.page_rows import asked, ended_turn
from tests.streaming.talk import session_of
from tests.support.processes import Processes
from tests.support.runs import make_conversation, make_turn, make_user
from tools.approvals import card
from tools.models import Approval

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120), pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module", autouse=True)
def beside_a_loop() -> Iterator[None]:
    """Playwright keeps an event loop in this thread; the rows of this test are made beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


def test_a_card_comes_live_and_takes_the_decision(browser: Browser, processes: Processes) -> None:
    conversation = make_conversation(user=make_user("decider", is_superuser=True))
    repository = Repository.objects.create(workspace=conversation.workspace, label="shop")
    Element.objects.create(
        workspace=conversation.workspace, repository=repository, key="shop.auth", kind="module", name="auth"
    )
    before = ended_turn(conversation, "Hello", "Hi.")
    turn = make_turn(conversation, after=before)
    question = Message.objects.create(conversation=conversation, turn=turn, role="user", round=0, text="Note it")
    Turn.objects.filter(pk=turn.pk).update(status="waiting_approval", question=question)
    type(conversation).objects.filter(pk=conversation.pk).update(active_turn=turn)
    _, url = processes.web()
    cookie = {"name": "sessionid", "value": session_of(conversation.user), "url": url}
    reader = Reader(browser, {"cookies": [{**cookie, "sameSite": "Lax"}], "origins": []})
    try:
        page = reader.open(f"{url}/c/{conversation.pk}/")
        expect(page.locator("[data-connection]")).to_have_text("Live")
        expect(page.locator("[data-approval]")).to_have_count(0)

        arguments = {"key": "shop.auth", "note": "<b>Split</b> it"}
        approval = asked(
            "turn",
            turn.pk,
            conversation,
            tool_name="annotate_element",
            arguments=arguments,
            summary="Note on shop.auth",
        )
        with transaction.atomic():
            event = EventRecord(EventName.APPROVAL_REQUESTED, card(approval))
            Stream.objects.append(conversation.pk, [event], correlation_id="c")
        wake(conversation.pk)
        shown = page.locator(f'[data-approval="{approval.pk}"]')
        expect(shown).to_contain_text("<b>Split</b> it")
        expect(page.locator("[data-turn] [data-slot=doing]").last).to_have_text("Waiting for approval…")

        shown.get_by_text("Edit the arguments").click()
        shown.get_by_label("Arguments as JSON").fill("{no json")
        shown.get_by_role("button", name="Approve").click()
        expect(shown.get_by_role("alert")).to_contain_text("no JSON")
        shown.get_by_label("Note for the agent").fill("Not in this release")
        shown.get_by_role("button", name="Reject").click()
        expect(shown).to_contain_text("Rejected by decider")
        expect(shown).to_contain_text("Not in this release")
        expect(shown.get_by_role("button")).to_have_count(0)
        approval.refresh_from_db()
        assert (approval.status, approval.note) == ("rejected", "Not in this release")
        assert Approval.objects.pending().count() == 0
        page.reload()
        expect(shown).to_contain_text("Rejected by decider")
        assert reader.complaints == []
    finally:
        reader.close()
