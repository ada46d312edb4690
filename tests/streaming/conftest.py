"""Servers for the streaming tests, started once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming import connection
from tests.streaming.servers import Valkey, Web, start_web
from tests.support.processes import Processes

PING_S = 0.5


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="cap-") as folder:
        server = Valkey(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def valkey(valkey_server: Valkey, settings: Any) -> Iterator[Valkey]:
    """A Valkey that a test may kill; it runs again before the next test."""
    if valkey_server.process is None:
        valkey_server.start()
    settings.REDIS_URL = valkey_server.url
    connection.client.cache_clear()
    connection.client().flushall()
    connection.circuit.__init__()  # type: ignore[misc]  # what an earlier test broke is whole again
    yield valkey_server
    connection.client().close()
    connection.client.cache_clear()


@pytest.fixture(scope="session")
def web(valkey_server: Valkey, django_db_setup: None) -> Iterator[Web]:
    """One web process for all of these tests; the rows it reads are each test's own."""
    with Processes() as processes:
        yield start_web(processes, valkey_server.url, ping_s=PING_S)
