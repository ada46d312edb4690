"""Hundreds of waiting turns share a handful of connections (design § 2.5)."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.utils import timezone
from rest_framework.authtoken.models import Token

from chat import services
from chat.models import Turn
from llm.testing import Gate, When, held
from tests.support.runs import make_user, make_workspace
from tests.support.waiting import wait_until

NAME = "web-of-many-turns"  # what PostgreSQL calls the web process
LEASE_S = 3


@pytest.mark.timeout(240)
@pytest.mark.parametrize("turns", [60, pytest.param(300, marks=pytest.mark.chaos)])
def test_hundreds_of_turns_wait_at_once_on_20_connections_and_no_lease_lapses(
    processes, openai_loopback, settings, turns
):
    settings.CAPSTAN_LEASE_SECONDS = LEASE_S
    user = make_user(is_superuser=True)
    workspace = make_workspace(user)
    keys = [services.create_conversation(user=user, workspace=workspace, now=timezone.now()).pk for _ in range(turns)]
    token = Token.objects.create(user=user).key
    gate = Gate()
    model = openai_loopback(When(lambda request: True, held(gate, "Done."), times=turns))
    environment = {
        "CAPSTAN_LEASE_SECONDS": str(LEASE_S),
        "DATABASE_POOL_SIZE": "20",
        "TURN_SYNC_SECONDS": "200",
        "PGAPPNAME": NAME,
        **model.environment(),
    }
    _web, base = processes.web(environment=environment)

    def post(key: object) -> tuple[int, str]:
        request = urllib.request.Request(
            f"{base}/api/conversations/{key}/messages/",
            data=json.dumps({"text": "Hello"}).encode(),
            headers={"Authorization": f"Token {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=200) as answer:
            return answer.status, json.load(answer)["text"]

    threading.stack_size(256 * 1024)
    try:
        pool = ThreadPoolExecutor(turns)
        answers = [pool.submit(post, key) for key in keys]
    finally:
        threading.stack_size(0)
    wait_until(lambda: len(model.script.requests) == turns, 120, what="all turns wait for the model at once")
    until = time.monotonic() + 1.5 * LEASE_S
    while time.monotonic() < until:  # longer than a lease: only the heartbeat keeps them
        assert Turn.objects.take_due() == []
        time.sleep(0.2)
    assert Turn.objects.filter(status="running", fence=1).count() == turns
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [NAME])
        assert 1 <= cursor.fetchone()[0] <= 20 + 1  # the pool and the heartbeat
    gate.open()
    assert {answer.result(60) for answer in answers} == {(201, "Done.")}
    pool.shutdown()
    assert Turn.objects.filter(status="completed", fence=1).count() == turns
