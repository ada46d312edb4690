"""The API's page in a browser: drawn under the content policy, and a call that is tried out is this user's."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Reader, Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def test_the_api_is_shown_and_tried_out(stack: Stack, reader: Reader) -> None:
    page = reader.open(f"{stack.url}/api/docs/")
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.reload()
    conversations = page.locator("#operations-conversations-conversations_create")
    expect(conversations).to_be_visible()
    conversations.locator("summary, .opblock-summary-control").first.click()
    conversations.get_by_role("button", name="Try it out").click()
    conversations.locator("textarea").fill('{"title": "From the page of the API"}')
    conversations.get_by_role("button", name="Execute").click()
    expect(conversations.locator(".live-responses-table .response .response-col_status")).to_contain_text("201")
    assert stack.rows("SELECT title FROM capstan_chat_conversation WHERE title = 'From the page of the API'")
    assert hosts == {stack.url.split("/")[2]}
