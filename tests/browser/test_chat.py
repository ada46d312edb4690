"""The whole product in a real browser: sign in, ask, watch the plan being finished, come back to it.

The stand-in's words are its own business: the tests look at the page, the stream and the rows.
"""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Reader, Stack, shot
from tests.config import up
from tests.streaming.servers import Web, reading

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

REQUEST = "Analyse the auth module and propose a refactor plan"
PLAN_S = 60_000


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def conversation_of(page: Page) -> str:
    return urlsplit(page.url).path.strip("/").removeprefix("c/")


def drawn(page: Page) -> str:
    """What the thread says, without the times."""
    text: str = page.evaluate(
        """() => {
            const copy = document.querySelector(".thread").cloneNode(true);
            const left = "time, [data-slot=time], [data-slot=took], [hidden], .tool-body, [data-views]";
            for (const each of copy.querySelectorAll(left)) each.remove();
            return copy.textContent.replace(/\\s+/g, " ");
        }"""
    )
    return text


def test_a_message_becomes_a_finished_plan_before_ones_eyes(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/")
    expect(page.get_by_text("No model is connected.")).to_be_visible()
    page.get_by_role("button", name=re.compile("Plan a refactor")).click()
    expect(page.get_by_label("Message", exact=True)).to_have_value(REQUEST)
    shot(page, "home-light")
    page.keyboard.press("Enter")
    page.wait_for_url("**/c/*/")
    page.evaluate("window.mark = 'the same page'")
    expect(page.locator("[data-connection]")).to_have_text("Live")
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator(".tool[data-state=done]")).not_to_have_count(0)
    expect(page.locator(".plan")).to_have_attribute("data-status", "running")
    page.locator(".step .live", has_text=re.compile(r"(.|\n){120}")).first.wait_for()
    shot(page, "plan-running")
    expect(page.locator(".plan")).to_have_attribute("data-status", "completed", timeout=PLAN_S)
    expect(page.locator(".plan [data-slot=result-text]")).not_to_be_empty()
    assert page.evaluate("window.mark") == "the same page"

    seen: dict[str, Any] = page.evaluate("({ words: seen.words.size, steps: seen.steps })")
    assert seen["words"] > 3  # text came in pieces
    steps = page.locator("[data-step]").evaluate_all("all => all.map((each) => each.dataset.step)")
    assert len(steps) >= 2
    for step in steps:
        assert f"{step} running" in seen["steps"]
        assert f"{step} completed" in seen["steps"]
    assert_rows(stack, conversation_of(page), steps)
    assert_stream(stack, page, conversation_of(page))

    before = drawn(page)
    page.reload()
    assert drawn(page) == before  # the server draws what the events drew
    page.locator(".scroll").evaluate("(each) => { each.scrollTop = 0; }")
    shot(page, "chat-light")
    page.locator(".tool summary").first.click()
    expect(page.locator(".tool-body").first).to_contain_text("Arguments")
    expect(page.locator(".tool-body").first).to_contain_text("goal")


def assert_rows(stack: Stack, conversation: str, steps: list[str]) -> None:
    """Everything the page showed is on record, under one correlation id."""
    [(turn, status, plan, correlation)] = stack.rows(
        "SELECT id, status, plan_id, correlation_id FROM capstan_chat_turn WHERE conversation_id = %s", conversation
    )
    assert status == "completed"
    assert stack.rows("SELECT status FROM capstan_plan_executionplan WHERE id = %s", plan) == [("completed",)]
    written = stack.rows(
        "SELECT key, status, llm_synthesis <> '' FROM capstan_plan_planstep WHERE plan_id = %s ORDER BY \"order\"", plan
    )
    assert written == [(step, "completed", True) for step in steps]
    ledger = "SELECT tool_name, status FROM capstan_tools_toolexecution WHERE owner_kind = 'turn' AND owner_id = %s"
    assert ("create_plan", "succeeded") in stack.rows(ledger, turn)
    calls = stack.rows(
        "SELECT owner_kind, bool_and(input_tokens > 0 AND latency_ms >= 0) FROM capstan_observability_agentinteraction"
        " WHERE correlation_id = %s GROUP BY owner_kind ORDER BY owner_kind",
        correlation,
    )
    assert calls == [("step", True), ("turn", True)]


def assert_stream(stack: Stack, page: Page, conversation: str) -> None:
    """The same again over the wire, numbered without a gap."""
    cookies = "; ".join(f"{each['name']}={each['value']}" for each in page.context.cookies())
    web = Web(port=urlsplit(stack.url).port or 0)
    with reading(web, f"/api/conversations/{conversation}/stream/", Cookie=cookies) as client:
        client.wait_for_events("caught_up")
    names = [event["event"] for event in client.rows]
    assert [int(str(event["id"]).split("-")[0]) for event in client.rows] == list(range(1, len(names) + 1))
    for order in ("turn_queued typing tool_start tool_end turn_ended", "typing plan_created turn_ended plan_completed"):
        places = [names.index(name) for name in order.split()]
        assert places == sorted(places)
    correlations = {json.loads(event["data"])["correlation_id"] for event in client.rows}
    assert len(correlations) == 1


def test_a_question_is_answered_in_the_dark_and_on_a_telephone(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/", color_scheme="dark")
    ask(page, "Which elements belong to the auth module?")
    page.wait_for_url("**/c/*/")
    expect(page.locator(".turn")).to_have_attribute("data-status", "completed")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    ask(page, REQUEST)
    expect(page.locator(".plan")).to_have_attribute("data-status", "completed", timeout=PLAN_S)
    page.locator(".turn").last.evaluate("(each) => each.scrollIntoView({ block: 'start' })")
    shot(page, "chat-dark")
    colours = page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    assert brightness(colours[0]) < 60 < 200 < brightness(colours[1])
    page.get_by_role("button", name="Change the colours").click()
    assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 200

    phone = reader.open(page.url, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    expect(phone.locator(".sidebar")).not_to_be_visible()
    phone.locator(".turn").last.evaluate("(each) => each.scrollIntoView({ block: 'start' })")
    assert phone.evaluate("document.body.scrollHeight") == 844  # the thread scrolls, the page does not
    shot(phone, "chat-mobile")
    phone.get_by_role("button", name="Show the chats").click()
    expect(phone.locator(".sidebar")).to_be_visible()

    page.locator(".plan [data-slot=link]").click()
    page.wait_for_url("**/plans/*/")
    expect(page.locator("[data-connection]")).to_have_text("Finished")
    expect(page.locator(".step .tool").first).to_be_visible()
    shot(page, "plan-light")


def brightness(colour: str) -> float:
    red, green, blue = (float(part) for part in re.findall(r"[\d.]+", colour)[:3])
    return (red + green + blue) / 3


def test_a_connection_that_was_lost_misses_nothing_and_draws_nothing_twice(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/")
    ask(page, REQUEST)
    page.wait_for_url("**/c/*/")
    expect(page.locator("[data-connection]")).to_have_text("Live")
    page.locator(".plan").wait_for()
    page.evaluate("window.mark = 'the same page'")
    web = next(pid for pid, command in up.processes_of(stack.state).items() if "uvicorn" in command)
    os.kill(web, signal.SIGKILL)
    expect(page.locator("[data-connection]")).to_have_text("Reconnecting…")
    expect(page.locator("[data-connection]")).to_have_text("Live", timeout=30_000)
    expect(page.locator(".plan")).to_have_attribute("data-status", "completed", timeout=PLAN_S)
    assert page.evaluate("window.mark") == "the same page"
    before = drawn(page)
    page.reload()
    assert drawn(page) == before
    reader.complaints[:] = [each for each in reader.complaints if "net::ERR_" not in each]


def test_a_plan_is_stopped_and_tried_again_on_its_own_page(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/")
    ask(page, REQUEST)
    page.wait_for_url("**/c/*/")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".plan")).to_have_attribute("data-status", "cancelled", timeout=30_000)
    expect(page.locator(".step[data-status=skipped]")).not_to_have_count(0)
    said = page.locator(".step[data-status=skipped] [data-slot=status]").all_text_contents()
    assert set(said) == {"Skipped"}  # live, before any reload
    total, skipped = page.locator(".step").count(), len(said)
    count = page.locator(".plan [data-slot=count]")
    expect(count).to_have_text(f"{total - skipped} of {total} · {skipped} skipped")
    assert page.locator(".plan progress").evaluate("bar => bar.value") == total - skipped
    shown = count.text_content()
    page.reload()
    expect(count).to_have_text(shown or "")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_url("**/plans/*/")
    expect(page.locator("[data-connection]")).to_have_text(re.compile("Live|Finished"))
    page.evaluate("window.mark = 'the same page'")
    expect(page.locator(".plan")).to_have_attribute("data-status", "completed", timeout=PLAN_S)
    expect(page.locator("[data-connection]")).to_have_text("Finished")
    expect(page.locator(".step .tool[data-state=done]")).not_to_have_count(0)
    expect(page.locator("[data-slot=took]")).to_have_text(re.compile(r"\d"))
    assert page.evaluate("window.mark") == "the same page"
    before = drawn(page)
    page.reload()
    assert drawn(page) == before
    page.get_by_role("link", name="The chat it came from").click()
    expect(page.locator(".plan")).to_have_count(2)


def test_live_text_is_written_where_it_belongs(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/")
    texts = page.evaluate(
        """async () => {
            const { LiveText } = await import("/static/chat/live-text.js");
            const write = (...pieces) => {
                const live = new LiveText();
                for (const [offset, text] of pieces) live.write(offset, text);
                return live.text;
            };
            return [
                write([0, "a\\u{1F680}"], [2, "b"]),  // a rocket is one character
                write([0, "abc"], [1, "bc"], [3, "d"]),  // again: nothing changes
                write([0, "abcdef"], [2, "XY"]),  // in place
                write([0, "ab"], [5, "z"]),  // past a gap: waits for the message
                write([0, "so far"], [0, "so far, and"], [11, " on"]),
            ];
        }"""
    )
    assert texts == ["a\U0001f680b", "abcd", "abXYef", "ab", "so far, and on"]


def test_the_keyboard_writes_breaks_lines_and_finds_its_way(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/")
    message = page.get_by_label("Message", exact=True)
    expect(message).to_be_focused()
    page.keyboard.press("Escape")
    expect(message).not_to_be_focused()
    page.keyboard.press("/")
    expect(message).to_be_focused()
    expect(message).to_have_value("")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.keyboard.press("Enter")
    assert page.url == stack.url + "/"  # nothing to send
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    expect(message).to_have_value("first line\nsecond line")
    page.keyboard.press("Enter")
    page.wait_for_url("**/c/*/")
    expect(page.locator(".bubble")).to_have_text("first line\nsecond line")


def test_a_chat_is_renamed_and_deleted_and_no_text_of_it_acts(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/")
    hostile = "<img src=x onerror=alert(1)> <script>alert(2)</script>"
    ask(page, hostile)
    page.wait_for_url("**/c/*/")
    key = conversation_of(page)
    expect(page.locator(".turn")).to_have_attribute("data-status", "completed")
    expect(page.locator(".bubble")).to_have_text(hostile)
    item = page.locator(f'[data-chat="{key}"]')
    item.hover()
    item.get_by_role("button", name="Rename").click()
    page.locator("dialog input").fill(f"Renamed {hostile}")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Renamed {hostile}")
    expect(item).to_contain_text(f"Renamed {hostile}")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Renamed {hostile}")
    assert page.locator("main img, .sidebar img, main script:not([type])").count() == 0
    item.hover()
    item.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(stack.url + "/")
    expect(page.locator(f'[data-chat="{key}"]')).to_have_count(0)
    assert stack.rows("SELECT 1 FROM capstan_chat_conversation WHERE stream_id = %s", key) == []


def test_what_the_server_refuses_is_said_in_words_and_the_text_is_kept(stack: Stack, reader: Reader) -> None:
    page = reader.open(stack.url + "/")
    ask(page, "Hello")
    page.wait_for_url("**/c/*/")
    expect(page.locator(".turn")).to_have_attribute("data-status", "completed")
    page.context.set_offline(True)
    ask(page, "typed with care")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_label("Message", exact=True)).to_have_value("typed with care")
    page.context.set_offline(False)
    page.context.clear_cookies()
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("signed out")
    expect(page.get_by_label("Message", exact=True)).to_have_value("typed with care")
    reader.complaints[:] = [each for each in reader.complaints if "Failed to load resource" not in each]
