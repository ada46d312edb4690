"""Who runs durable plans in the benches: how each is prepared, started and given a plan of data steps.

The step's body is the same for all (`plan_step.py`). Peers run at their defaults; a changed setting is in the name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from bed import HERE, QUIET, peer_python, redis_url


class Ours:
    """The product's worker: policies, ledger, events, one commit a step."""

    name = "ours, threads 2 x 8"
    threads = 8

    def __init__(self, url: str) -> None:
        from workspaces.models import User
        from workspaces.services import ensure_workspace

        self.url = url
        self.owner, _ = User.objects.get_or_create(username="bench")
        self.workspace = ensure_workspace(slug="bench", name="bench", member=self.owner)

    def close(self) -> None: ...

    def env(self) -> dict[str, str]:
        return {**os.environ, **QUIET, "DATABASE_POOL_SIZE": str(self.threads + 4)}

    def workers(self) -> list[list[str]]:
        celery = [sys.executable, "-m", "celery", "-A", "plan_worker", "--quiet", "worker", "-P", "threads"]
        alone = ["-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat", "-Q", "plans"]
        return [[*celery, "-c", str(self.threads), *alone, "-n", f"bench{number}@%h"] for number in range(2)]

    def enqueue(self, name: str, steps: int) -> float:
        """Hold a plan and have a worker told; when that was asked for, monotonic seconds."""
        from django.db import transaction

        from tools.ports import dispatcher

        asked = time.monotonic()
        with transaction.atomic():
            dispatcher().dispatch_after_commit(self.hold(name, steps))
        return asked

    def hold(self, name: str, steps: int) -> Any:
        """A plan of data steps, in the open transaction; nobody is told."""
        from django.utils import timezone

        from events.models import Stream
        from plan.models import ExecutionPlan
        from plan.services import Recorded
        from plan.services import hold as hold_plan
        from plan.types import StepSpec

        plan = ExecutionPlan(
            workspace=self.workspace,
            stream=Stream.objects.create(workspace=self.workspace),
            correlation_id=name,
            status=ExecutionPlan.READY,
            owner=self.owner,
            identity="planner",
            goal=name,
            template="bench",
            created_at=timezone.now(),
        )
        specs = [
            StepSpec(
                key=f"s{number}",
                action="Do the bench's step.",
                kind="data",
                tool_name="bench_step",
                args={"plan": name, "number": number},
                reads=(f"s{number - 1}",) if number else (),
            )
            for number in range(steps)
        ]
        hold_plan(plan, specs, events=Recorded())
        return plan


class Floor(Ours):
    """Plans are held as ours are; two processes write the rows that ours writes and do nothing else."""

    name, kind = "floor, bare psycopg 2 x 1", "lean"

    def workers(self) -> list[list[str]]:
        return [[sys.executable, str(HERE / "floor_worker.py"), self.kind]] * 2

    def enqueue(self, name: str, steps: int) -> float:
        from django.db import transaction

        asked = time.monotonic()
        with transaction.atomic():
            self.hold(name, steps)
        return asked


class Statement(Floor):
    """The same with the hot path's own statement, which asks for fence, rights and readiness besides."""

    name, kind = "our statement, bare psycopg 2 x 1", "statement"


class Chain:
    """A Celery chain on Redis, late acknowledgement: not durable."""

    name = "celery chain, prefork 2"

    def __init__(self, url: str) -> None:
        from config.celery_settings import kombu_url

        os.environ["BENCH_CHAIN_BROKER"] = kombu_url(redis_url(1))
        import chain_worker

        self.step = chain_worker.step

    def close(self) -> None: ...

    def env(self) -> dict[str, str]:
        return _without_us()

    def workers(self) -> list[list[str]]:
        celery = [sys.executable, "-m", "celery", "-A", "chain_worker", "--quiet", "worker", "-c", "2", "-l", "ERROR"]
        return [[*celery, "-n", "chain@%h"]]

    def enqueue(self, name: str, steps: int) -> float:
        from celery import chain

        asked = time.monotonic()
        chain(*[self.step.si(name, number) for number in range(steps)]).apply_async()
        return asked


class Foreign:
    """A peer with an interpreter of its own: a process of it enqueues, two work."""

    name: str
    venv: str
    options: Sequence[str]

    def __init__(self, url: str) -> None:
        python = peer_python(self.venv)
        assert python is not None
        self.url, self.script = url, [python, str(HERE / f"{self.venv}_worker.py")]
        subprocess.run([*self.script, "migrate"], env=self.env(), cwd=HERE, check=True, timeout=60, capture_output=True)
        self.client = subprocess.Popen(
            [*self.script, "enqueue"],
            env=self.env(),
            cwd=HERE,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._answer() == "ready"

    def close(self) -> None:
        assert self.client.stdin is not None
        self.client.kill()
        self.client.wait()
        self.client.stdin.close()

    def env(self) -> dict[str, str]:
        return {**_without_us(), "BENCH_PEER_DATABASE": self.url.replace("postgres://", "postgresql://", 1)}

    def workers(self) -> list[list[str]]:
        return [[*self.script, "worker", *self.options]] * 2

    def enqueue(self, name: str, steps: int) -> float:
        assert self.client.stdin is not None
        self.client.stdin.write(f"{name} {steps}\n")
        self.client.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self.client.stdout is not None
        line = self.client.stdout.readline()
        assert line, f"{self.name}: the enqueuing process has ended"
        return line.strip()


class Dbos(Foreign):
    name, venv, options = "dbos, 2 processes, defaults (poll 1 s)", "dbos", ("1.0", "none")


class DbosTuned(Foreign):
    name, venv, options = "dbos, 2 processes, poll 0.1 s, worker_concurrency 4", "dbos", ("0.1", "4")


class Procrastinate(Foreign):
    name, venv, options = "procrastinate, 2 workers, defaults", "procrastinate", ("1",)


class ProcrastinateTuned(Foreign):
    name, venv, options = "procrastinate, 2 workers, concurrency 8", "procrastinate", ("8",)


PEERS: dict[str, Any] = {
    "ours": Ours,
    "chain": Chain,
    "dbos": Dbos,
    "dbos-tuned": DbosTuned,
    "procrastinate": Procrastinate,
    "procrastinate-tuned": ProcrastinateTuned,
    "statement": Statement,
    "floor": Floor,
}


def installed(kind: str) -> bool:
    """Whether a peer can run here; says what is missing."""
    venv = getattr(PEERS[kind], "venv", None)
    if venv is None or peer_python(venv):
        return True
    print(json.dumps({"skipped": kind, "why": f"no {venv}/bin/python in BENCH_VENVS (bench/README.md)"}), flush=True)
    return False


def _without_us() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in {"DJANGO_SETTINGS_MODULE", "DATABASE_URL"}}
    return {**inherited, **QUIET, "PYTHONPATH": ""}
