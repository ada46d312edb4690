"""PostgreSQL and Redis die under a whole running stack, and plans go on (issue 6, faults 3 and 4)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from django.conf import settings

from config.embedded import remove_sockets, servers_of
from config.state import StateFolder
from llm.testing import Gate, When, held, say, user_said
from tests.config import up
from tests.support.waiting import wait_until

LEASE_S = 3
RECOVERED_S = 3 * (LEASE_S + LEASE_S / 6 + 2 + 10)  # ten for the server's own recovery

HOLD = """
from django.db import transaction
from django.utils import timezone
from events.models import Stream
from plan.services import create_plan, Recorded
from plan.types import StepSpec
from workspaces.models import User, Workspace
owner, workspace = User.objects.get(username="admin"), Workspace.objects.get(slug="demo")
with transaction.atomic():
    stream = Stream.objects.create(workspace=workspace)
    plan = create_plan(
        goal="Survive.", steps=[StepSpec(key=key, action=f"Do {key}.") for key in ("one", "two", "three")], owner=owner,
        workspace=workspace, identity="planner", conversation_id=None, turn_id=None, stream_id=stream.pk,
        correlation_id="chaos", events=Recorded(), now=timezone.now())
print("PLAN", plan.pk)
"""


def status_of(state: Path, plan: int) -> str:
    """The plan's status; empty while the database does not answer."""
    try:
        with psycopg.connect(servers_of(StateFolder(state)).database_url, connect_timeout=2) as connection:
            row = connection.execute("SELECT status FROM capstan_plan_executionplan WHERE id = %s", [plan]).fetchone()
    except psycopg.OperationalError:
        return ""
    return str(row[0]) if row else ""


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["postgres -D", "valkey-server"], ids=["postmaster", "valkey"])
def test_a_killed_server_loses_no_plan(openai_loopback, victim):
    gate = Gate()
    model = openai_loopback(
        When(user_said("Do one."), say("One."), times=None),
        When(user_said("Do two."), held(gate, "Two."), times=1),
        When(user_said("Do two."), say("Two."), times=None),
        When(user_said("Do three."), say("Three."), times=None),
    )
    state = up.fresh_state()
    environment = {**model.environment(), "CAPSTAN_LEASE_SECONDS": str(LEASE_S)}
    stack = up.start(state, up.free_port(), **environment)
    try:
        stack.wait_for_line(up.GREETING, up.START_S)
        told = subprocess.run(
            [sys.executable, "manage.py", "shell", "-v", "0", "-c", HOLD],
            env=up.environment(state, **environment),
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "PLAN" in told.stdout, told.stdout + told.stderr
        plan = int(told.stdout.split("PLAN")[1])
        model.wait_for_request(2, timeout=60)
        pids = [pid for pid, command in up.processes_of(state).items() if victim in command]
        assert pids, json.dumps(up.processes_of(state))
        os.kill(min(pids), signal.SIGKILL)
        gate.open()
        wait_until(lambda: status_of(state, plan) == "completed", RECOVERED_S, what=f"plan is {status_of(state, plan)}")
    finally:
        stack.close()
        wait_until(lambda: not up.processes_of(state), what="an end of the stack")
        remove_sockets(StateFolder(state))
