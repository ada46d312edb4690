"""A whole stack with the stand-in for a model, and a browser that is signed in to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from config.embedded import remove_sockets, servers_of
from config.state import StateFolder
from tests.config import up
from tests.conftest import chromium_path

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Notes what was drawn on the way, so that no test has to catch it in the act.
WITNESS = """
window.seen = { words: new Set(), steps: [] };
new MutationObserver(() => {
  for (const each of document.querySelectorAll(".streaming, .live:not([hidden])")) seen.words.add(each.textContent);
  for (const each of document.querySelectorAll("[data-step]")) {
    const state = `${each.dataset.step} ${each.dataset.status}`;
    if (!seen.steps.includes(state)) seen.steps.push(state);
  }
}).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
"""


WAIT_MS = 20_000  # for what is behaviour: a busy machine takes its time
expect.set_options(timeout=WAIT_MS)

SHOTS = Path(settings.BASE_DIR) / "docs" / "screenshots"


def shot(page: Page, name: str) -> None:
    """Keep a picture when they are asked for."""
    if os.environ.get("CAPSTAN_SCREENSHOTS"):
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.wait_for_timeout(250)  # transitions
        page.screenshot(path=SHOTS / f"{name}.png")


@dataclass(frozen=True)
class Stack:
    """Where it serves, how to sign in, and its rows."""

    url: str
    password: str
    state: Path

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of the stack's own database."""
        with psycopg.connect(servers_of(StateFolder(self.state)).database_url) as connection:
            return connection.execute(sql, parameters).fetchall()


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """`manage.py up` on a folder of its own; for pictures with Django's auth application in the catalogue."""
    state, port = up.fresh_state(), up.free_port()
    variables = {"LLM_PROVIDER": "demo", "DEBUG": "true"}
    process = up.start(state, port, **variables)
    try:
        url = process.wait_for_line(up.GREETING, up.START_S)[1]
        password = process.wait_for_line(r"Sign in as admin with the password (\S+)")
        if os.environ.get("CAPSTAN_SCREENSHOTS"):
            scan(state, variables)
        yield Stack(url=url.rstrip("/"), password=password[1], state=state)
    finally:
        process.close()
        up.wait_for_end(state)
        remove_sockets(StateFolder(state))


def scan(state: Path, variables: dict[str, str]) -> None:
    """Fill the catalogue, so that there is something to talk about."""
    spec = find_spec("django.contrib.auth")
    assert spec is not None
    assert spec.origin is not None
    command = ("extract_elements", str(Path(spec.origin).parent), "--workspace", "demo", "--apply")
    done = subprocess.run(
        [sys.executable, "manage.py", *command],
        env=up.environment(state, **variables),
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. Playwright keeps an event loop in this thread, so it is gone before other tests use the database."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def session(stack: Stack, browser: Browser) -> dict[str, Any]:
    """The cookies of somebody who signed in at the page."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(stack.url + "/")
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill(stack.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(stack.url + "/")
    state: dict[str, Any] = json.loads(json.dumps(context.storage_state()))
    context.close()
    return state


class Reader:
    """Opens pages as that user; whatever a page complains of fails the test."""

    def __init__(self, browser: Browser, session: dict[str, Any]) -> None:
        self._browser, self._session = browser, session
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []

    def open(self, url: str, **options: Any) -> Page:
        context = self._browser.new_context(
            **{"viewport": {"width": 1280, "height": 860}, **options, "storage_state": self._session}
        )
        self._contexts.append(context)
        context.add_init_script(WITNESS)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(url)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def reader(browser: Browser, session: dict[str, Any]) -> Iterator[Reader]:
    made = Reader(browser, session)
    yield made
    made.close()
    assert made.complaints == []
