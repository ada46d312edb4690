"""The session's servers, what every test may ask for, and which lanes run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis as redis_client
from django.conf import settings

from config.embedded import EmbeddedServers, remove_sockets
from tests.settings import SESSION, STARTS_SERVERS
from tests.support.processes import Processes

pytest_plugins = ["llm.testing.plugin"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Files that take longest, longest first: what ends last is then short.
LONG = (
    "tests/config/test_up.py",
    "tests/browser/test_chat.py",
    "tests/browser/test_plan_views.py",
    "tests/chat/test_crash.py",
    "tests/worker/test_crash.py",
    "tests/config/test_model_settings.py",
    "tests/plan/test_races.py",
    "tests/browser/test_branches.py",
    "tests/tools/test_mcp_server.py",
    "tests/worker/test_faults.py",
    "tests/catalog/test_command.py",
    "tests/tools/test_call_runs.py",
    "tests/chat/test_many.py",
    "tests/config/test_health.py",
)
OPT_IN = ("live_llm", "quality", "chaos")
_servers = ExitStack()
_left_out: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Start PostgreSQL and Valkey for the session, before the first test asks for them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background: what tests start would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    if STARTS_SERVERS and not config.option.collectonly:
        log = _servers.enter_context((Path(os.environ[SESSION]) / "servers.log").open("wb"))
        _servers.callback(remove_sockets, settings.STATE)
        _servers.enter_context(EmbeddedServers(settings.STATE, durable=False, log=log))


def pytest_unconfigure() -> None:
    """Stop them, also after Ctrl-C."""
    _servers.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the lanes that `-m` does not name, and the browser's tests where there is none; long ones first."""
    wanted = config.option.markexpr
    dropped = [item for item in items if any(item.get_closest_marker(lane) and lane not in wanted for lane in OPT_IN)]
    if chromium_path() is None:
        browser = [item for item in items if item.get_closest_marker("browser") and item not in dropped]
        if browser and os.environ.get("CAPSTAN_REQUIRE_BROWSER"):
            raise pytest.UsageError(f"CAPSTAN_REQUIRE_BROWSER is set, and none of {', '.join(BROWSERS)} is installed.")
        _left_out.extend(item.nodeid for item in browser)
        dropped += browser
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]
    ranks = {(config.rootpath / file): rank for rank, file in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what a missing browser left unproven."""
    if _left_out:
        terminalreporter.section("BROWSER TESTS LEFT OUT: no Chromium", yellow=True, bold=True)
        terminalreporter.line(f"Install it (Debian: apt install chromium) to run {len(_left_out)}: {_left_out}")


def chromium_path() -> str | None:
    """The installed Chromium, None when there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@pytest.fixture
def chromium() -> str:
    """The path of Chromium's executable, for tests marked `browser`."""
    path = chromium_path()
    assert path is not None, "a test marked `browser` runs only where Chromium is installed"
    return path


@pytest.fixture
def redis() -> Iterator[redis_client.Redis]:
    """The session's Redis, empty before and after the test."""
    client = redis_client.Redis.from_url(settings.REDIS_URL)
    client.flushdb()
    yield client
    client.flushdb()
    client.close()


@pytest.fixture
def processes(transactional_db: None, redis: redis_client.Redis) -> Iterator[Processes]:
    """Starts real worker, web and beat processes on the test's database; none outlives the test."""
    with Processes() as started:
        yield started
