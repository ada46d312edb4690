"""Durable plans beside a Celery chain and beside the bare statement, interleaved in one run.

    python bench/plans.py [repeats] [plans] [steps] [peers]      peers: any of chain,ours,floor

    ours    the product's worker on PostgreSQL: policies, ledger, events, one commit a step
    chain   a Celery chain on Redis, prefork 2: not durable
    floor   two bare psycopg processes that write the same rows with the same statement, no policies, no queue

Reads `DATABASE_URL` and `REDIS_URL`; makes the databases `capstan_bench` (and Redis databases 14, 15) anew. Prints one
JSON line a measurement and the medians.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

HERE = Path(__file__).resolve().parent
LOG = Path(os.environ.setdefault("BENCH_STEPLOG", str(Path(tempfile.gettempdir()) / "capstan_bench_steps.log")))
DATABASE = "capstan_bench"


def redis_database(number: int) -> str:
    """The URL of one Redis database."""
    return os.environ["REDIS_URL"].partition("?")[0] + f"?db={number}"


def prepare() -> None:
    """A fresh migrated database, and Django on it."""
    import psycopg

    parts = urlsplit(os.environ["DATABASE_URL"])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{DATABASE}" WITH (FORCE)')
        server.execute(f'CREATE DATABASE "{DATABASE}"')
    os.environ["DATABASE_URL"] = urlunsplit(parts._replace(path=f"/{DATABASE}"))
    sys.path.insert(0, str(HERE.parent))
    os.environ["BENCH_CHAIN_BROKER"] = _kombu(redis_database(14))
    os.environ["REDIS_URL"] = redis_database(15)
    os.environ.setdefault("LLM_PROVIDER", "demo")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import logging

    import django

    django.setup()
    logging.disable(logging.INFO)
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def _kombu(url: str) -> str:
    from config.celery_settings import kombu_url

    return kombu_url(url)


class Ours:
    name = "ours, threads 2x8"

    def __init__(self) -> None:
        from workspaces.models import User
        from workspaces.services import ensure_workspace

        self.owner, _ = User.objects.get_or_create(username="bench")
        self.workspace = ensure_workspace(slug="bench", name="bench", member=self.owner)

    def workers(self) -> list[list[str]]:
        celery = [sys.executable, "-m", "celery", "-A", "plan_worker", "--quiet", "worker", "-P", "threads", "-c", "8"]
        alone = ["-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat", "-Q", "plans"]
        return [[*celery, *alone, "-n", f"bench{number}@%h"] for number in range(2)]

    def enqueue(self, name: str, steps: int) -> None:
        from django.db import transaction

        from tools.ports import dispatcher

        with transaction.atomic():
            plan = self.hold(name, steps)
            dispatcher().dispatch_after_commit(plan)

    def hold(self, name: str, steps: int) -> Any:
        """A plan of data steps, in the open transaction."""
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
    """Plans are held as ours are; two processes run the statement and nothing else."""

    name = "floor, bare psycopg 2x1"

    def workers(self) -> list[list[str]]:
        return [[sys.executable, str(HERE / "plans.py"), "floor-worker"]] * 2

    def enqueue(self, name: str, steps: int) -> None:
        from django.db import transaction

        with transaction.atomic():
            self.hold(name, steps)


class Chain:
    name = "celery chain, prefork 2"

    def __init__(self) -> None:
        sys.path.insert(0, str(HERE))
        import chain_worker

        self.step = chain_worker.step

    def workers(self) -> list[list[str]]:
        celery = [sys.executable, "-m", "celery", "-A", "chain_worker", "--quiet", "worker", "-c", "2", "-l", "ERROR"]
        return [[*celery, "-n", "chain@%h"]]

    def enqueue(self, name: str, steps: int) -> None:
        from celery import chain

        chain(*[self.step.si(name, number) for number in range(steps)]).apply_async()


def floor_worker() -> None:
    """Pop plans, run the statement of the hot path for each step; no Django connection, no policies, no queue."""
    import psycopg
    from plan_step import do_step
    from psycopg.types.numeric import Int8

    from plan import hot
    from plan.models import ExecutionPlan

    table = ExecutionPlan._meta.db_table
    connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=1)
    claim = f"""UPDATE {table} SET status = 'running', fence = 1, attempts = 1,
        lease_until = clock_timestamp() + interval '30 seconds' WHERE id = (SELECT id FROM {table}
        WHERE status NOT IN ('completed', 'failed', 'cancelled') AND status = 'pending' ORDER BY id LIMIT 1
        FOR UPDATE SKIP LOCKED) RETURNING id, stream_id, workspace_id, owner_id, correlation_id"""
    start, end = hot._statement(hot._START), hot._statement(hot._END)
    order = hot.STEP.index("order")
    while True:
        plan = connection.execute(claim).fetchone()
        if plan is None:
            time.sleep(0.005)
            continue
        pk, stream, workspace, owner, name = plan
        keys = {"s": stream, "p": Int8(pk), "f": Int8(1), "r": Int8(0), "n": Int8(0), "d": 30.0, "c": name,
                "l0": Int8(workspace), "l1": Int8(owner)}  # fmt: skip
        row = connection.execute(start, keys).fetchone()
        while row is not None and row[4] is not None:
            number, step = row[4 + order] - 1, row[4]
            result = json.dumps(do_step(name, number))
            ledger = [workspace, owner, name, "step", step, None, pk, 1, 1, "bench_step", "read", "workflow",
                      f"{step}", json.dumps({"plan": name, "number": number}), f"{step}", "succeeded", result, "",
                      0, False, 0, 0]  # fmt: skip
            values = {f"l{place}": hot._typed(value) for place, value in enumerate(ledger)}
            payload = json.dumps({"run": f"step:{step}", "plan_id": pk, "step": f"s{number}", "order": number + 1,
                                  "action": "Do the bench's step.", "kind": "data", "status": "completed"})  # fmt: skip
            row = connection.execute(
                end,
                {**keys, **values, "n": Int8(step), "j": result, "e": payload, "rt": ""},
            ).fetchone()


def ran() -> list[tuple[str, int, float]]:
    """Every step execution so far: plan, number, when."""
    try:
        lines = LOG.read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(plan, int(number), float(at)) for plan, number, _pid, at in (line.split() for line in lines)]


def wait_for(names: Sequence[str], steps: int, *, limit_s: float, every: float = 0.02) -> bool:
    """Whether all these plans ran their last step in time."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        last = {plan for plan, number, _at in ran() if number == steps - 1}
        if last >= set(names):
            return True
        time.sleep(every)
    return False


def resident_mb(pid: int) -> int:
    """Resident memory of a process, MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def measure(make: Callable[[], Any], *, plans: int, steps: int, tag: str) -> dict[str, Any]:
    """One burst and twenty lone plans."""
    peer = make()
    LOG.write_bytes(b"")
    ours = {"DATABASE_POOL_SIZE": "12", "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(HERE.parent)}
    environment = {**os.environ, **ours}
    if make is Chain:
        del environment["DJANGO_SETTINGS_MODULE"]  # the peer's worker knows no Django
    processes = [subprocess.Popen(argv, cwd=HERE, env=environment, start_new_session=True) for argv in peer.workers()]
    try:
        warm = [f"warm-{tag}-{number}" for number in range(8)]
        for name in warm:
            peer.enqueue(name, 20)
        assert wait_for(warm, 20, limit_s=60), f"{peer.name}: the workers did not start"
        before = [resident_mb(process.pid) for process in processes]
        names = [f"burst-{tag}-{number}" for number in range(plans)]
        began = time.monotonic()
        for name in names:
            peer.enqueue(name, steps)
        complete = wait_for(names, steps, limit_s=300, every=0.1)
        burst = [(plan, number, at) for plan, number, at in ran() if plan in set(names)]
        twice = sum(count - 1 for count in Counter((plan, number) for plan, number, _at in burst).values())
        rate = len(burst) / (max(at for *_, at in burst) - began)
        waits = []
        for number in range(20):
            time.sleep(0.1)
            name, asked = f"lone-{tag}-{number}", time.monotonic()
            peer.enqueue(name, 1)
            wait_for([name], 1, limit_s=15, every=0.002)
            waits += [(at - asked) * 1e3 for plan, _number, at in ran() if plan == name]
        waits.sort()
        return {
            "peer": peer.name,
            "steps_per_s": round(rate),
            "complete": complete,
            "twice": twice,
            "idle_ms_p50": round(statistics.median(waits), 1),
            "idle_ms_max": round(waits[-1], 1),
            "workers_mb": [before, [resident_mb(process.pid) for process in processes]],
            "load1": round(os.getloadavg()[0], 1),
        }
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(arguments: Sequence[str]) -> None:
    defaults = ("3", "200", "20", "chain,ours,floor")
    repeats, plans, steps, peers = (*arguments, *defaults[len(arguments) :])
    prepare()
    import redis

    kinds = {"chain": Chain, "ours": Ours, "floor": Floor}
    results: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(int(repeats)):
        for kind in peers.split(","):
            redis.Redis.from_url(redis_database(15)).flushdb()
            redis.Redis.from_url(redis_database(14)).flushdb()
            one = measure(kinds[kind], plans=int(plans), steps=int(steps), tag=f"{kind}{repeat}")
            print(json.dumps(one), flush=True)
            results.setdefault(kind, []).append(one)
    medians = {kind: statistics.median(one["steps_per_s"] for one in rows) for kind, rows in results.items()}
    ratios = {f"ours / {kind}": round(medians["ours"] / medians[kind], 2) for kind in medians if "ours" in medians}
    print(json.dumps({"medians": medians, **ratios}))


if __name__ == "__main__":
    if sys.argv[1:] == ["floor-worker"]:
        sys.path[:0] = [str(HERE.parent), str(HERE)]
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        import django

        django.setup()
        floor_worker()
    else:
        main(sys.argv[1:])
