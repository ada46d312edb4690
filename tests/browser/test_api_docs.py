"""The API's page in a browser: drawn under the content policy, and a call that is tried out is this user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from chat.models import Conversation
from tests.browser.conftest import Reader
from tests.streaming.talk import session_of
from tests.support.processes import Processes
from tests.support.runs import make_user, make_workspace

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120), pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module", autouse=True)
def beside_a_loop() -> Iterator[None]:
    """Playwright keeps an event loop in this thread; the rows of this test are made beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


def test_the_api_is_shown_and_tried_out(browser: Browser, processes: Processes) -> None:
    user = make_user("reader")
    make_workspace(user)
    _, url = processes.web()
    cookie = {"name": "sessionid", "value": session_of(user), "url": url, "sameSite": "Lax"}
    reader = Reader(browser, {"cookies": [cookie], "origins": []})
    try:
        page = reader.open(f"{url}/api/docs/")
        hosts: set[str] = set()
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.reload()
        made = page.locator("#operations-conversations-conversations_create")
        made.locator(".opblock-summary-control").click()
        made.get_by_role("button", name="Try it out").click()
        made.locator("textarea").fill('{"title": "From the page of the API"}')
        made.get_by_role("button", name="Execute").click()
        expect(made.locator(".live-responses-table .response .response-col_status")).to_contain_text("201")
        conversation = Conversation.objects.get()
        assert (conversation.title, conversation.user) == ("From the page of the API", user)
        assert hosts == {url.split("/")[2]}
    finally:
        reader.close()
    assert reader.complaints == []
