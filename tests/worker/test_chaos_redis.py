"""Redis is emptied, stopped, frozen or killed while plans run: all complete without a hand (issue 6, fault 3)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis as redis_client
from redis.exceptions import ConnectionError as RedisGone

from catalog.models import Element, ElementNote, Repository
from config.embedded import Layout, Valkey, remove_sockets, servers_of
from config.processes import spawn
from config.state import StateFolder
from llm.testing import Gate, When, call, held, say, user_said
from plan.models import ExecutionPlan
from tests.config.up import fresh_state
from tests.support.plans import events_of, hold_plan, llm_step
from tests.support.processes import Processes, Running
from tests.support.runs import make_user, make_workspace
from tests.support.waiting import wait_until
from tools.models import ToolExecution

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

LEASE_S = 3
AWAY_S = 30
RECONNECTED_S = 14  # Celery tries again after 2, 4, 6, … seconds
COMPLETE_S = 3 * (LEASE_S + LEASE_S / 6 + 2 + RECONNECTED_S)


class OwnRedis:
    """A Valkey of the test's own, which may die and come back at the same address with nothing in it."""

    def __init__(self, state: StateFolder) -> None:
        self._valkey = Valkey(Layout.prepare(state), durable=False)
        self.url = servers_of(state).redis_url
        self.client = redis_client.Redis.from_url(self.url, socket_timeout=2)
        self._process: Running | None = None

    def start(self) -> None:
        self._process = Running("valkey", spawn(self._valkey.prepare(), output=subprocess.PIPE))
        wait_until(self._answers, 10, what="Valkey")
        assert self.client.dbsize() == 0

    def stop(self) -> None:
        assert self._process is not None
        assert self._process.terminate() == 0, self._process.output

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def close(self) -> None:
        self.client.close()
        if self._process is not None:
            self._process.close()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisGone:
            return False


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    state = StateFolder(fresh_state())
    state.path.mkdir()
    own = OwnRedis(state)
    try:
        own.start()
        yield own
    finally:
        own.close()
        remove_sockets(state)


def away(seconds: float) -> None:
    threading.Event().wait(max(seconds, 0.0))


@contextmanager
def emptied(own: OwnRedis) -> Iterator[None]:
    for _ in range(20):
        own.client.flushall()
        away(0.1)
    yield
    own.client.flushall()


@contextmanager
def stopped(own: OwnRedis) -> Iterator[None]:
    own.stop()
    since = time.monotonic()
    yield
    away(AWAY_S - (time.monotonic() - since))
    own.start()


@contextmanager
def frozen(own: OwnRedis) -> Iterator[None]:
    own.signal(signal.SIGSTOP)
    since = time.monotonic()
    yield
    away(AWAY_S - (time.monotonic() - since))
    own.signal(signal.SIGCONT)


@contextmanager
def restarted(own: OwnRedis) -> Iterator[None]:
    own.kill()
    own.start()
    yield


def start_everything(processes: Processes, environment: dict[str, str]) -> None:
    processes.worker("turns,plans", environment=environment)
    processes.worker("sweep", pool="solo", environment=environment)
    processes.worker("suspect", pool="solo", environment=environment)
    processes.beat(environment=environment)


@pytest.mark.parametrize("fault", [emptied, stopped, frozen, restarted])
def test_every_plan_completes_whatever_becomes_of_redis(processes, openai_loopback, own_redis, settings, fault):
    """One plan is in the middle, four wait in the queue, four are made while Redis is away."""
    settings.CAPSTAN_LEASE_SECONDS = LEASE_S
    owner = make_user(is_superuser=True)
    workspace = make_workspace(owner)
    repository = Repository.objects.create(workspace=workspace, label="shop")
    Element.objects.create(workspace=workspace, repository=repository, key="m", kind="module", name="shop")
    gate = Gate()

    def answer(request):
        if request.messages[-1].role == "tool":
            return say("Noted.", delay_s=0.02)
        wanted = next(line for line in request.messages[-1].content.splitlines() if "Do " in line)
        return call("annotate_element", key="m", note=wanted)

    model = openai_loopback(
        When(user_said("middle-2"), held(gate, call("annotate_element", key="m", note="Do middle-2.")), times=1),
        When(lambda _request: True, answer, times=None),
    )
    environment = {**model.environment(), "CAPSTAN_LEASE_SECONDS": str(LEASE_S), "REDIS_URL": own_redis.url}

    def hold(name: str) -> ExecutionPlan:
        steps = [llm_step(f"{name}-{n}") for n in (1, 2, 3)]
        return hold_plan(*steps, owner=owner, workspace=workspace)

    plans = [hold("middle")]
    start_everything(processes, environment)
    wait_until(lambda: in_status("running", plans) == 1, 20)
    plans += [hold(f"queued-{n}") for n in range(4)]
    wait_until(lambda: asked_for(model, "middle-2"), 20)
    with fault(own_redis):
        plans += [hold(f"away-{n}") for n in range(4)]
        gate.open()
        wait_until(lambda: in_status("completed", plans[:1]) == 1, COMPLETE_S, what="what runs needs no Redis")
    back = time.monotonic()
    wait_until(lambda: in_status("completed", plans) == len(plans), COMPLETE_S, what=states(plans))
    print(f"{fault.__name__}: {time.monotonic() - back:.1f} s after Redis was back")  # noqa: T201
    assert [process.name for process in processes.running if process.process.poll() is not None] == []
    texts = sorted(ElementNote.objects.values_list("text", flat=True))
    assert len(texts) == len(set(texts)) == 3 * len(plans)
    assert ToolExecution.objects.filter(status="succeeded").count() == 3 * len(plans)
    assert [len(events_of(plan, "plan_completed")) for plan in plans] == [1] * len(plans)


def in_status(status: str, plans: list[ExecutionPlan]) -> int:
    return ExecutionPlan.objects.filter(pk__in=[plan.pk for plan in plans], status=status).count()


def asked_for(model: object, text: str) -> bool:
    return any(user_said(text)(request) for request in model.script.requests)  # type: ignore[attr-defined]


def states(plans: list[ExecutionPlan]) -> str:
    return str(list(ExecutionPlan.objects.filter(pk__in=[plan.pk for plan in plans]).values_list("pk", "status")))
