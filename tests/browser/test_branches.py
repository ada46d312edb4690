"""Around a turn: the blackboard, asking something else, another try, and leafing through what there was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Locator, Page, Route, expect

from chat.models import Conversation, Turn
from chat.services import cancel_turn, regenerate, select_branch
from llm.errors import RateLimitError
from llm.testing import say
from llm.testing.loopback import OpenAILoopback
from tests.browser.conftest import Reader
from tests.browser.test_chat import shot
from tests.chat.page_rows import ended_turn
from tests.streaming.talk import session_of
from tests.support.processes import Processes
from tests.support.runs import make_conversation, make_user

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120), pytest.mark.django_db(transaction=True)]

FIRST = """The **first** answer: `auth` is slow, because each request reads its session twice.

<board>{"phase": "deciding", "hypothesis": "The session is read twice.", "next_intent": "Measure the reads"}</board>"""


@pytest.fixture(scope="module", autouse=True)
def beside_a_loop() -> Iterator[None]:
    """Playwright keeps an event loop in this thread; the rows of this test are made beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


def ended(page: Page) -> Locator:
    """The last turn, once it has ended."""
    last = page.locator("[data-turn]").last
    expect(last).to_have_attribute("data-status", "completed")
    return last


def answer(turn: Locator) -> Locator:
    return turn.locator("[data-slot=rounds]")


def active(conversation: Conversation) -> Turn:
    found = Conversation.objects.select_related("active_turn").get(pk=conversation.pk).active_turn
    assert found is not None
    return found


def test_versions_of_a_turn_and_the_board_beside_it(
    browser: Browser, processes: Processes, openai_loopback: Callable[..., OpenAILoopback]
) -> None:
    conversation = make_conversation(user=make_user("reader", is_superuser=True))
    ended_turn(conversation, "Hello", "Hi. What shall we look at?")
    Conversation.objects.filter(pk=conversation.pk).update(board={"phase": "exploring"}, title="What is slow?")
    model = openai_loopback(
        RateLimitError(retry_after_s=2.0), say(FIRST), say("The second answer."), say("The third answer.")
    )
    processes.worker("turns,plans", environment=model.environment())
    _, url = processes.web(environment=model.environment())
    cookie = {"name": "sessionid", "value": session_of(conversation.user), "url": url, "sameSite": "Lax"}
    reader = Reader(browser, {"cookies": [cookie], "origins": []})
    try:
        page = reader.open(f"{url}/c/{conversation.pk}/")
        expect(page.locator("[data-connection]")).to_have_text("Live")
        board_of_the_page(page)
        first_answer(page)
        another_try(page, conversation)
        beside = reader.open(page.url)
        expect(beside.locator("[data-connection]")).to_have_text("Live")
        another_question(page, conversation)
        another_tab(beside, page)
        a_narrow_window(page)
        assert reader.complaints == []
    finally:
        reader.close()


def test_a_question_after_a_try_that_said_nothing_can_be_edited(
    browser: Browser, processes: Processes, openai_loopback: Callable[..., OpenAILoopback]
) -> None:
    conversation = make_conversation(user=make_user("reader", is_superuser=True))
    first = ended_turn(conversation, "Hello", "Hi. What shall we look at?")
    retry = regenerate(
        turn_id=first.pk, author=conversation.user, respond_async=False, correlation_id="c", now=timezone.now()
    )
    silent = cancel_turn(turn_id=retry.pk)
    asked = ended_turn(conversation, "What is slow?", "The first answer.")
    assert asked.after_id == silent.pk
    model = openai_loopback(
        say("The second answer."),
        *[say("So far", stop_reason=reason) for reason in ("refusal", "max_tokens")],
        say(""),
        say("It goes on."),
    )
    processes.worker("turns,plans", environment=model.environment())
    _, url = processes.web(environment=model.environment())
    cookie = {"name": "sessionid", "value": session_of(conversation.user), "url": url, "sameSite": "Lax"}
    reader = Reader(browser, {"cookies": [cookie], "origins": []})
    try:
        page = reader.open(f"{url}/c/{conversation.pk}/")
        expect(page.locator("[data-slot=question]")).to_have_text(["Hello", "What is slow?"])
        expect(page.locator("[data-turn]").first.locator(".answered .pages")).to_have_text("2/2")
        turn = page.locator("[data-turn]").last
        turn.hover()
        turn.get_by_role("button", name="Edit the question").click()
        turn.get_by_label("Your question").fill("What is fast?")
        page.keyboard.press("Enter")
        expect(page.locator("[data-slot=question]")).to_have_text(["Hello", "What is fast?"])
        expect(answer(ended(page))).to_contain_text("The second answer")
        expect(ended(page).locator(".asked .pages")).to_have_text("2/2")
        assert active(conversation).after_id == silent.pk
        how_an_answer_ended(page)
        Conversation.objects.filter(pk=conversation.pk).update(active_turn=asked)  # and no event tells of it
        shown = page.locator("[data-turn]").last.get_attribute("data-turn")
        page.get_by_label("Message", exact=True).fill("Go on.")
        page.keyboard.press("Enter")
        expect(answer(ended(page))).to_contain_text("It goes on")
        assert str(active(conversation).after_id) == shown
        assert reader.complaints == []
    finally:
        reader.close()


def test_what_is_being_sent_outlives_a_drawing_anew_and_a_choice_elsewhere_a_refusal(
    browser: Browser, processes: Processes
) -> None:
    conversation = make_conversation(user=make_user("reader", is_superuser=True))
    first = ended_turn(conversation, "Hello", "Hi.")
    slow = ended_turn(conversation, "What is slow?", "The reads.")
    Conversation.objects.filter(pk=conversation.pk).update(active_turn=first)
    fast = ended_turn(conversation, "What is fast?", "The writes.")
    _, url = processes.web()
    cookie = {"name": "sessionid", "value": session_of(conversation.user), "url": url, "sameSite": "Lax"}
    reader = Reader(browser, {"cookies": [cookie], "origins": []})
    held: list[Route] = []

    def choose(turn: Turn) -> None:
        select_branch(
            conversation_id=conversation.pk, user=conversation.user, turn_id=turn.pk, correlation_id="elsewhere"
        )

    def edit(turn: Locator, text: str) -> None:
        turn.hover()
        turn.get_by_role("button", name="Edit the question").click()
        turn.get_by_label("Your question").fill(text)
        with page.expect_request("**/messages/"):
            page.keyboard.press("Enter")

    def refuse() -> None:
        error = {"code": "turn.active", "message": "The conversation is busy.", "details": {}}
        held.pop().fulfill(status=409, json={"error": error})

    try:
        page, beside = (reader.open(f"{url}/c/{conversation.pk}/") for _ in range(2))
        for each in (page, beside):
            expect(each.locator("[data-connection]")).to_have_text("Live")
        page.route(re.compile("/(messages|branch)/$"), lambda route: held.append(route))
        questions = page.locator("[data-slot=question]")

        top = page.locator("[data-turn]").first
        edit(top, "Hello, rather")
        choose(slow)
        expect(questions).to_have_text(["Hello", "What is slow?"])
        field = top.get_by_label("Your question")
        expect(field).to_have_value("Hello, rather")
        refuse()
        expect(top.locator("[data-edit] [data-slot=problem]")).to_have_text("The conversation is busy.")
        expect(field).to_have_value("Hello, rather")
        top.get_by_role("button", name="Cancel").click()

        last = page.locator("[data-turn]").last
        edit(last, "What is late?")
        choose(fast)
        expect(questions).to_have_text(["Hello", "What is fast?"])
        refuse()  # its question is not shown any more
        expect(page.get_by_label("Message", exact=True)).to_have_value("What is late?")
        expect(page.locator("[data-composer] [data-slot=problem]")).to_have_text("The conversation is busy.")

        expect(beside.locator("[data-slot=question]")).to_have_text(["Hello", "What is fast?"])
        last.hover()
        with page.expect_request("**/branch/"):
            last.get_by_role("button", name="Version of the question before this").click()
        choose(slow)
        expect(beside.locator("[data-slot=question]")).to_have_text(["Hello", "What is slow?"])
        refuse()
        expect(questions).to_have_text(["Hello", "What is slow?"])
        assert [each for each in reader.complaints if "409" not in each] == []
    finally:
        reader.close()


def how_an_answer_ended(page: Page) -> None:
    """A refusal, a truncation and an empty answer are told apart, live and when the page is opened again."""
    said = (
        "The model declined to answer.",
        "The answer was cut off at its length limit.",
        "The model gave an empty answer.",
    )
    for number, notice in enumerate(said, start=3):
        page.get_by_label("Message", exact=True).fill("And?")
        page.keyboard.press("Enter")
        expect(page.locator("[data-turn]")).to_have_count(number)
        expect(ended(page).locator("[data-slot=notice]")).to_have_text(notice)
    page.reload()
    assert page.locator("[data-slot=notice]:visible").all_inner_texts() == ["Cancelled.", *said]


def board_of_the_page(page: Page) -> None:
    """The server draws it; whether it is shown is remembered."""
    board, button = page.locator("#board"), page.get_by_role("button", name="Blackboard", exact=True)
    expect(board.locator("dt:visible")).to_have_text(["Phase"])
    expect(board.locator("dd:visible")).to_have_text(["exploring"])
    board.get_by_role("button", name="Hide the blackboard").click()
    expect(board).to_be_hidden()
    expect(button).to_be_focused()
    page.reload()
    expect(board).to_be_hidden()
    expect(button).to_have_attribute("aria-expanded", "false")


def first_answer(page: Page) -> None:
    """The provider's wait is said and taken back; the board follows, and says that it has news."""
    page.get_by_label("Message", exact=True).fill("What is slow?")
    page.keyboard.press("Enter")
    doing = page.locator("[data-turn]").last.locator("[data-slot=doing]")
    expect(doing).to_have_text(re.compile(r"provider asks us to wait \d s"))
    turn = ended(page)
    expect(answer(turn)).to_contain_text("The first answer: auth is slow")
    expect(turn.locator("[data-slot=working]")).to_be_hidden()
    expect(page.get_by_text("asks us to wait")).to_have_count(0)

    board, button = page.locator("#board"), page.get_by_role("button", name="Blackboard", exact=True)
    expect(button).to_have_attribute("data-news", "yes")
    button.click()
    expect(board).to_be_visible()
    expect(board.locator("dt:visible")).to_have_text(["Phase", "Hypothesis", "Next intent"])
    expect(board.locator("dd:visible").last).to_have_text("Measure the reads")
    expect(button).not_to_have_attribute("data-news", "yes")
    before = board.inner_text()
    page.reload()
    expect(board).to_be_visible()
    assert board.inner_text() == before


def another_try(page: Page, conversation: Conversation) -> None:
    """Beside the old answer; both stay and are leafed through, with the keyboard as well."""
    first, turn = active(conversation), ended(page)
    turn.get_by_role("button", name="Answer again").focus()
    page.keyboard.press("Enter")
    expect(answer(page.locator("[data-turn]").last)).to_have_text(re.compile("The second answer"))
    turn = ended(page)
    expect(page.locator("[data-turn]")).to_have_count(2)
    expect(turn.locator(".answered .pages")).to_have_text("2/2")
    turn.hover()
    shot(page, "branches-light")
    turn.get_by_role("button", name="Version of the answer before this").press("Enter")
    expect(answer(turn)).to_contain_text("The first answer")
    expect(turn.locator(".answered .pages")).to_have_text("1/2")
    assert active(conversation).pk == first.pk
    following = turn.get_by_role("button", name="Version of the answer after this")
    expect(following).to_be_focused()  # where one was going before, there is nothing more
    page.keyboard.press("Enter")
    expect(answer(turn)).to_contain_text("The second answer")
    page.reload()
    expect(turn.locator(".answered .pages")).to_have_text("2/2")


def another_question(page: Page, conversation: Conversation) -> None:
    """An edited question begins a branch of its own."""
    old, turn = active(conversation), ended(page)
    turn.hover()
    turn.get_by_role("button", name="Edit the question").click()
    field = turn.get_by_label("Your question")
    expect(field).to_have_value("What is slow?")
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(field).to_have_count(0)
    expect(turn.get_by_role("button", name="Edit the question")).to_be_focused()
    page.keyboard.press("Enter")
    field.fill("What is fast?")
    page.keyboard.press("Enter")
    expect(page.locator("[data-turn]").last.locator("[data-slot=question]")).to_have_text("What is fast?")
    expect(answer(page.locator("[data-turn]").last)).to_contain_text("The third answer")
    turn = ended(page)
    expect(page.locator("[data-turn]")).to_have_count(2)
    expect(turn.locator(".asked .pages")).to_have_text("2/2")
    expect(turn.locator(".answered .pages")).to_have_count(0)
    assert (active(conversation).after_id, active(conversation).pk != old.pk) == (old.after_id, True)
    turn.get_by_role("button", name="Version of the question before this").click()
    expect(turn.locator("[data-slot=question]")).to_have_text("What is slow?")
    expect(answer(turn)).to_contain_text("The second answer")
    assert active(conversation).pk == old.pk
    page.emulate_media(color_scheme="dark")
    turn.hover()
    shot(page, "branches-dark")
    page.emulate_media(color_scheme="light")


def another_tab(beside: Page, page: Page) -> None:
    """Whatever branch is asked for or leafed to in one tab is shown in the other, both ways."""
    expect(beside.locator("[data-slot=question]")).to_have_text(["Hello", "What is slow?"])
    turn = ended(beside)
    expect(answer(turn)).to_contain_text("The second answer")
    turn.get_by_role("button", name="Version of the answer before this").click()
    expect(answer(turn)).to_contain_text("The first answer")
    expect(answer(ended(page))).to_contain_text("The first answer")
    expect(ended(page).locator(".answered .pages")).to_have_text("1/2")
    first = beside.locator("[data-turn]").first
    first.hover()
    first.get_by_role("button", name="Edit the question").click()
    first.get_by_label("Your question").fill("Hello, half typed")
    ended(page).get_by_role("button", name="Version of the question after this").click()
    expect(beside.locator("[data-slot=question]")).to_have_text(["Hello", "What is fast?"])
    expect(answer(ended(beside))).to_contain_text("The third answer")
    expect(first.get_by_label("Your question")).to_have_value("Hello, half typed")
    expect(first.get_by_label("Your question")).to_be_focused()


def a_narrow_window(page: Page) -> None:
    """The board waits behind its button."""
    page.set_viewport_size({"width": 390, "height": 844})
    board, button = page.locator("#board"), page.get_by_role("button", name="Blackboard", exact=True)
    expect(board).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    button.click()
    expect(board).to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "true")
    shot(page, "board-narrow")
    page.keyboard.press("Escape")
    expect(board).to_be_hidden()
    expect(button).to_be_focused()
