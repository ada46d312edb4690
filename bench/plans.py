"""Durable plans beside peers and beside the bare statement, interleaved in one run on one PostgreSQL.

    python bench/plans.py [repeats] [plans] [steps] [peers]      3 200 20 and all of them

    ours            the product's worker on PostgreSQL: policies, ledger, events, one commit a step
    chain           a Celery chain on Redis, prefork 2: not durable
    dbos, procrastinate, -tuned     as they come, and with the setting that serves them best (`bench/README.md`)
    floor           two bare psycopg processes that write the rows that ours writes, by the leanest statement
    statement       the same with our own statement, which asks for fence, rights and readiness besides

Each repeat measures each of them three times: plans that are run while they come, plans that lie in the queue when the
workers begin, and lone plans at random moments on idle workers (enqueue to first step). A last part counts what ours
and the floor write: rows of each table and commits a step. Prints JSON lines and the tables. What it starts and makes
goes away, also at Ctrl-C.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bed import (
    Backends,
    Processes,
    StepLog,
    databases,
    django_on,
    empty_redis,
    known,
    percentile,
    say,
    scratch,
    spread,
    stop_on_signals,
    table,
)
from plan_peers import PEERS, installed

LONE, LONE_S = 100, 15.0  # lone plans a repeat, and how long at most
BURST_S = 120.0


def measure(peer: Any, url: str, *, plans: int, steps: int, tag: str, log: StepLog, folder: Path) -> dict[str, Any]:
    """Plans as they come, plans that lie in the queue, and lone plans on idle workers."""
    log.clear()
    backends = Backends(url)
    with Processes(peer.workers(), env=peer.env(), log=folder / "workers.log") as workers:
        warm = [f"warm-{tag}-{number}" for number in range(8)]
        for name in warm:
            peer.enqueue(name, 20)
        if not log.wait_for(warm, 20, limit_s=60, by=workers):
            raise SystemExit(f"{peer.name}: the workers did not start\n{workers.last_lines()}")
        time.sleep(0.5)
        names = [f"come-{tag}-{number}" for number in range(plans)]
        began = time.monotonic()
        for name in names:
            peer.enqueue(name, steps)
        enqueued = time.monotonic()
        complete = log.wait_for(names, steps, limit_s=BURST_S, by=workers, every=0.1)
        came, twice = executions(log, names)
        time.sleep(0.5)

        workers.signal(signal.SIGSTOP)
        names = [f"lie-{tag}-{number}" for number in range(plans)]
        for name in names:
            peer.enqueue(name, steps)
        backends.begin()
        cpu, let_go = workers.cpu_s(), time.monotonic()
        workers.signal(signal.SIGCONT)
        complete &= log.wait_for(names, steps, limit_s=BURST_S, by=workers, every=0.1)
        cpu, backend_cpu = workers.cpu_s() - cpu, backends.spent_s()
        lay, more = executions(log, names)

        waits = lone(peer, tag=tag, log=log, workers=workers)
    backends.close()
    return {
        "peer": peer.name,
        "steps_per_s_enqueueing": round(len(came) / (max(came) - began)),
        "steps_per_s": round(len(lay) / (max(lay) - let_go)),
        "complete": complete,
        "twice": twice + more,
        "enqueue_ms": round((enqueued - began) / plans * 1e3, 2),
        "worker_cpu_us": round(cpu / len(lay) * 1e6),
        "backend_cpu_us": round(backend_cpu / len(lay) * 1e6),
        "idle_ms": [round(wait, 2) for wait, _ in waits],
        "idle_enqueued_ms": [round(wait, 2) for _, wait in waits],
        "load1": round(os.getloadavg()[0], 1),
    }


def executions(log: StepLog, names: Sequence[str]) -> tuple[list[float], int]:
    """When the steps of these plans ran, and how many ran more than once."""
    wanted = set(names)
    ran = [(plan, number, at) for plan, number, at in log.read() if plan in wanted]
    twice = sum(count - 1 for count in Counter((plan, number) for plan, number, _at in ran).values())
    return [at for *_, at in ran], twice


def lone(peer: Any, *, tag: str, log: StepLog, workers: Processes) -> list[tuple[float, float]]:
    """Milliseconds to a plan's first step on idle workers, out of step with anybody's polling.

    Counted from asking for the plan, and from the moment when it was enqueued.
    """
    waits: list[tuple[float, float]] = []
    moment, until = random.Random(7), time.monotonic() + LONE_S
    for number in range(LONE):
        time.sleep(moment.uniform(0.02, 0.12))
        name = f"lone-{tag}-{number}"
        asked = peer.enqueue(name, 1)
        enqueued = time.monotonic()
        if not log.wait_for([name], 1, limit_s=10, by=workers, every=0.001):
            raise SystemExit(f"{peer.name}: a lone plan did not run")
        waits += [
            ((at - asked) * 1e3, max(0.0, at - enqueued) * 1e3) for plan, _number, at in log.read()[-3:] if plan == name
        ]
        if time.monotonic() > until:
            break
    return waits


def count_writes(kind: str, url: str, *, plans: int, steps: int, log: StepLog, folder: Path) -> dict[str, Any]:
    """What a worker writes a step: rows inserted and updated by table, commits. The plans are held beforehand."""
    import psycopg
    from django.db import connection

    peer = PEERS[kind](url)
    log.clear()
    empty_redis()
    names = [f"count-{kind}-{number}" for number in range(plans)]
    for name in names:
        peer.enqueue(name, steps)
    connection.close()
    with psycopg.connect(url, autocommit=True) as watcher:
        before = _written(watcher)
        with Processes(peer.workers(), env=peer.env(), log=folder / "workers.log") as workers:
            assert log.wait_for(names, steps, limit_s=60, by=workers), f"{kind}: the counted plans did not run"
            _settle(watcher, ended=plans, prefix=f"count-{kind}-")
        after = _written(watcher)
    total = plans * steps
    rows = {name: round((after[name] - before.get(name, 0)) / total, 3) for name in after}
    return {"what": f"writes a step, {peer.name}", "steps": total, **{k: v for k, v in rows.items() if v}}


def _settle(watcher: Any, *, ended: int, prefix: str) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        row = watcher.execute(
            "SELECT count(*) FROM capstan_plan_executionplan WHERE status = 'completed' AND starts_with(goal, %s)",
            [prefix],
        ).fetchone()
        if row[0] == ended:
            return
        time.sleep(0.05)
    raise SystemExit("the counted plans did not end")


def _written(watcher: Any) -> dict[str, int]:
    """The counters, once every other backend has ended and so handed in what it had counted."""
    until = time.monotonic() + 10
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while watcher.execute(others).fetchone()[0] and time.monotonic() < until:
        time.sleep(0.05)
    watcher.execute("SELECT pg_stat_force_next_flush()")
    watcher.execute("SELECT pg_stat_clear_snapshot()")
    counted = {"commits": watcher.execute(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").fetchone()[0]}  # fmt: skip
    for name, inserted, updated in watcher.execute(
        "SELECT relname, n_tup_ins, n_tup_upd FROM pg_stat_user_tables ORDER BY relname"
    ).fetchall():
        counted |= {f"{name} inserted": inserted, f"{name} updated": updated}
    return counted


def report(results: dict[str, list[dict[str, Any]]]) -> None:
    """The table: medians, ranges, ratios."""
    rates = {kind: statistics.median(one["steps_per_s"] for one in rows) for kind, rows in results.items()}
    ours = [one["steps_per_s"] for one in results.get("ours", [])]
    ratios = {
        kind: [a / one["steps_per_s"] for a, one in zip(ours, rows, strict=False)] for kind, rows in results.items()
    }
    lines = []
    for kind, rows in results.items():
        idle = [wait for one in rows for wait in one["idle_ms"]]
        after = [wait for one in rows for wait in one["idle_enqueued_ms"]]
        lines.append(
            [
                rows[0]["peer"],
                spread([one["steps_per_s"] for one in rows]),
                spread([one["steps_per_s_enqueueing"] for one in rows]),
                spread([one["enqueue_ms"] for one in rows], 1),
                spread(ratios[kind], 2),
                spread([one["worker_cpu_us"] for one in rows])
                + " + "
                + spread([one["backend_cpu_us"] for one in rows]),
                f"{percentile(idle, 0.5):.1f} / {percentile(idle, 0.99):.1f} / {max(idle):.1f}",
                f"{percentile(after, 0.5):.1f} / {percentile(after, 0.99):.1f}",
                len(idle),
                sum(one["twice"] for one in rows),
                "yes" if all(one["complete"] for one in rows) else "NO",
            ]
        )
    table(
        ["who", "steps/s, median (range)", "steps/s while plans come", "enqueue ms a plan",
         "ours / this, repeat by repeat", "CPU µs a step: worker + PostgreSQL",
         "idle: enqueue to first step, ms p50 / p99 / max", "of it after enqueueing", "lone plans", "run twice",
         "all complete"],
        lines,
    )  # fmt: skip
    say(medians=rates, **{f"ours / {kind}": round(rates["ours"] / rates[kind], 2) for kind in rates if "ours" in rates})


def main(arguments: Sequence[str]) -> None:
    stop_on_signals()
    defaults = ("3", "200", "20", ",".join(PEERS))
    repeats, plans, steps, peers = (*arguments, *defaults[len(arguments) :])
    kinds = [kind for kind in known(peers, PEERS) if installed(kind)]
    results: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with scratch() as folder:
        os.environ["BENCH_STEPLOG"] = str(folder / "steps.log")
        log = StepLog(folder / "steps.log")
        with databases("") as [url], django_on(url):
            for repeat in range(int(repeats)):
                for kind in kinds:
                    empty_redis()
                    with ExitStack() as own:
                        place = own.enter_context(databases(f"_{kind}"))[0] if hasattr(PEERS[kind], "venv") else url
                        peer = PEERS[kind](place)
                        own.callback(peer.close)
                        one = measure(
                            peer,
                            place,
                            plans=int(plans),
                            steps=int(steps),
                            tag=f"{kind}{repeat}",
                            log=log,
                            folder=folder,
                        )
                    waits = {k: [round(percentile(one[k], p), 1) for p in (0.5, 0.99, 1)] for k in one if "idle" in k}
                    say(**one | waits)
                    results[kind].append(one)
            writes = [
                count_writes(kind, url, plans=40, steps=int(steps), log=log, folder=folder)
                for kind in ("ours", "floor")
                if kind in kinds
            ]
    report(results)
    for one in writes:
        say(**one)


if __name__ == "__main__":
    main(sys.argv[1:])
