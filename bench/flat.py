"""Whether a step costs the same in a long plan as in a short one, and in a full table as in an empty one.

    python bench/flat.py [steps a measurement] [largest table]      6000 100000

Ours alone, two worker processes of eight threads. First plans of 10, 100 and 1,000 steps, then plans of 20 steps beside
100, 1,000, 10,000 and 100,000 others in the tables: 99 of 100 ended, the rest waiting for a person or for a retry that
is far off, each with five steps and their ledger and event rows. For each size: steps/s, CPU µs a step of worker and
PostgreSQL, and what one look of the sweep takes. At the end the query plans of claim, readiness, hot path and sweep,
and whether one of them reads a whole table.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bed import (
    Backends,
    Processes,
    StepLog,
    databases,
    django_on,
    empty_redis,
    say,
    scratch,
    spread,
    stop_on_signals,
    table,
)
from plan_peers import Ours

LENGTHS = (10, 100, 1_000)
TABLES = (100, 1_000, 10_000, 100_000)
REPEATS = 3
STEPS_A_PLAN = 20
STEPS_OF_OTHERS = 5
LIMIT_S = 120.0


def run_once(peer: Ours, url: str, *, plans: int, steps: int, tag: str, log: StepLog, folder: Path) -> dict[str, float]:
    """Plans that lie in the queue when the workers go on; rate and CPU time of their steps."""
    log.clear()
    backends = Backends(url)
    with Processes(peer.workers(), env=peer.env(), log=folder / "workers.log") as workers:
        warm = [f"warm-{tag}-{number}" for number in range(16)]
        for name in warm:
            peer.enqueue(name, 40)
        if not log.wait_for(warm, 40, limit_s=60, by=workers):
            raise SystemExit(f"the workers did not start\n{workers.last_lines()}")
        time.sleep(0.5)
        workers.signal(signal.SIGSTOP)
        names = [f"{tag}-{number}" for number in range(plans)]
        for name in names:
            peer.enqueue(name, steps)
        backends.begin()
        cpu, began = workers.cpu_s(), time.monotonic()
        workers.signal(signal.SIGCONT)
        complete = log.wait_for(names, steps, limit_s=LIMIT_S, by=workers)
        took, total = time.monotonic() - began, plans * steps
        figures = {
            "steps_per_s": total / took,
            "worker_us": (workers.cpu_s() - cpu) / total * 1e6,
            "postgres_us": backends.spent_s() / total * 1e6,
        }
    backends.close()
    if not complete:
        raise SystemExit(f"{tag}: not all plans ended within {LIMIT_S:g} s\n{workers.last_lines()}")
    return figures


# -- a full table


def fill(peer: Ours, total: int) -> None:
    """Bring the tables to `total` plans with their steps, ledger and event rows, by SQL."""
    from django.db import connection

    from events.models import Event, Stream
    from plan.models import ExecutionPlan, PlanStep
    from tools.models import ToolExecution

    plans, steps, streams, events, ledger = (
        model._meta.db_table for model in (ExecutionPlan, PlanStep, Stream, Event, ToolExecution)
    )
    there = ExecutionPlan.objects.filter(template="filler").count()
    if there >= total:
        return
    sample, step, call, event = _samples(peer)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute(
            f"""CREATE TEMPORARY TABLE new AS
                SELECT gen_random_uuid() AS stream, n, n % 100 = 0 AS open, n % 200 = 0 AS person
                FROM generate_series({there + 1}, {total}) AS n"""
        )
        cursor.execute(
            f"INSERT INTO {streams} ({_columns(Stream, 'id')}, id) SELECT {_columns(Stream, 'id', of='s')}, new.stream "
            f"FROM new, {streams} s WHERE s.id = %s",
            [sample.stream_id],
        )
        other: tuple[str, ...] = (
            "id",
            "stream_id",
            "status",
            "ended_at",
            "not_before",
            "template",
            "lease_until",
            "lease_owner",
        )
        cursor.execute(
            f"""INSERT INTO {plans} ({_columns(ExecutionPlan, *other)}, stream_id, status, ended_at, not_before,
                    template, lease_until, lease_owner)
                SELECT {_columns(ExecutionPlan, *other, of="p")}, new.stream,
                    CASE WHEN new.person THEN 'waiting_approval' WHEN new.open THEN 'waiting_retry'
                         ELSE 'completed' END,
                    CASE WHEN NOT new.open THEN now() END,
                    CASE WHEN new.open AND NOT new.person THEN now() + interval '1 day' END, 'filler', NULL, ''
                FROM new, {plans} p WHERE p.id = %s""",
            [sample.pk],
        )
        other = ("id", "plan_id", "status", "key", "order", "ended_at", "not_before")
        cursor.execute(
            f"""INSERT INTO {steps} ({_columns(PlanStep, *other)}, plan_id, key, "order", status, ended_at, not_before)
                SELECT {_columns(PlanStep, *other, of="s")}, p.id, 's' || k, k + 1,
                    CASE WHEN NOT new.open OR k < 2 THEN 'completed' WHEN k > 2 THEN 'pending'
                         WHEN new.person THEN 'waiting_approval' ELSE 'waiting_retry' END,
                    CASE WHEN NOT new.open OR k < 2 THEN now() END,
                    CASE WHEN new.open AND NOT new.person AND k = 2 THEN now() + interval '1 day' END
                FROM new JOIN {plans} p ON p.stream_id = new.stream, generate_series(0, {STEPS_OF_OTHERS - 1}) AS k,
                    {steps} s WHERE s.id = %s""",
            [step.pk],
        )
        other = ("id", "plan_id", "owner_id", "idempotency_key")
        cursor.execute(
            f"""INSERT INTO {ledger} ({_columns(ToolExecution, *other)}, plan_id, owner_id, idempotency_key)
                SELECT {_columns(ToolExecution, *other, of="l")}, t.plan_id, t.id, 'filler-' || t.id
                FROM new JOIN {plans} p ON p.stream_id = new.stream JOIN {steps} t ON t.plan_id = p.id, {ledger} l
                WHERE l.id = %s AND t.status = 'completed'""",
            [call.pk],
        )
        cursor.execute(
            f"""INSERT INTO {events} ({_columns(Event, "id", "stream_id", "seq")}, stream_id, seq)
                SELECT {_columns(Event, "id", "stream_id", "seq", of="e")}, new.stream, k
                FROM new, generate_series(1, {2 * STEPS_OF_OTHERS}) AS k, {events} e WHERE e.id = %s""",
            [event.pk],
        )
        cursor.execute("DROP TABLE new")
        cursor.execute("SET synchronous_commit = on")
        for name in (plans, steps, streams, events, ledger):
            cursor.execute(f"VACUUM (ANALYZE) {name}")
        cursor.execute("CHECKPOINT")


def _columns(model: Any, *but: str, of: str = "") -> str:
    before = f"{of}." if of else ""
    return ", ".join(f'{before}"{f.column}"' for f in model._meta.concrete_fields if f.column not in but)


def _samples(peer: Ours) -> tuple[Any, Any, Any, Any]:
    """A plan that has run, one of its steps, its call and an event of it."""
    from events.models import Event
    from plan.models import ExecutionPlan, PlanStep
    from tools.models import ToolExecution

    plan = ExecutionPlan.objects.filter(status="completed", template="bench").earliest("id")
    step = PlanStep.objects.filter(plan=plan, order=1).get()
    call = ToolExecution.objects.filter(owner_kind="step", owner_id=step.pk).get()
    return plan, step, call, Event.objects.filter(stream=plan.stream_id, name="plan_step").earliest("seq")


# -- the sweep and the query plans


def looks() -> dict[str, Callable[[], object]]:
    """What the sweep asks about plans."""
    from plan.models import ExecutionPlan

    return {
        "due": lambda: ExecutionPlan.objects.take_due(),
        "spent": lambda: list(ExecutionPlan.objects.spent().values_list("pk", flat=True)),
        "cancelled": lambda: list(ExecutionPlan.objects.cancel_orphans().values_list("pk", flat=True)),
        "idle": lambda: ExecutionPlan.objects.idle_with_work(),
    }


def sweep_ms() -> float:
    """The best of some looks at all plans, ms; the neighbours of a shared machine only ever slow it down."""
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        for look in looks().values():
            look()
        spent.append((time.perf_counter() - began) * 1e3)
    return round(min(spent), 2)


def query_plans(peer: Ours) -> int:
    """Print how PostgreSQL does claim, readiness, hot path and sweep; how many read a whole table of plans or steps."""
    from django.db import transaction

    from plan import hot
    from plan.models import ExecutionPlan, PlanStep
    from tools.runs import RunRef

    found, run = 0, cast(Any, None)
    with transaction.atomic():
        plan = peer.hold("explained", STEPS_A_PLAN)

        def claim() -> None:
            won = ExecutionPlan.objects.claim(plan.pk, owner="bench")
            assert won is not None
            nonlocal run
            run = RunRef.of(won)

        asked: dict[str, Callable[[], object]] = {
            "claim": claim,
            "readiness": lambda: PlanStep.objects.next_ready(plan.pk),
            "hot path: first step": lambda: hot.start_first(run, revision=0, user_id=plan.owner_id),
            "hot path: step": lambda: _end_first(run, plan),
            **{f"sweep: {name}": look for name, look in looks().items()},
        }
        for name, work in asked.items():
            for told in explained(work):
                whole = [
                    line for line in told if "Seq Scan on capstan_plan" in line or "Seq Scan on capstan_tools" in line
                ]
                found += len(whole)
                print(f"-- {name}", *told, sep="\n", flush=True)
        transaction.set_rollback(True)
    return found


def _end_first(run: Any, plan: Any) -> object:
    from plan import hot
    from plan.models import PlanStep
    from tools.quick import QuickCall

    step = PlanStep.objects.filter(plan=plan, status="running").get()
    ledger = QuickCall(
        user_id=plan.owner_id, conversation_id=None, tool_name="bench_step", idempotency_key="k", arguments="{}",
        arguments_digest="d", result="{}", duration_ms=0, scope_version=0,
    )  # fmt: skip
    return hot.end_data_step(run, step=step, revision=0, ledger=ledger)


def explained(work: Callable[[], object]) -> list[list[str]]:
    """How PostgreSQL does each statement that `work` makes on plans and steps, for all parameters where it prepares."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    told = []
    with CaptureQueriesContext(connection) as captured:
        work()
    with connection.cursor() as cursor:
        for query in captured.captured_queries:
            sql = query["sql"]
            if "capstan_plan_" in sql and not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
                cursor.execute(
                    f"EXPLAIN (COSTS OFF, GENERIC_PLAN) {sql}" if "$1" in sql else f"EXPLAIN (COSTS OFF) {sql}"
                )
                told.append([row[0] for row in cursor.fetchall()])
    return told


def main(arguments: Sequence[str]) -> None:
    stop_on_signals()
    total = int(arguments[0]) if arguments else 6_000
    largest = int(arguments[1]) if len(arguments) > 1 else TABLES[-1]
    tables = [size for size in TABLES if size <= largest]
    lines: list[list[Any]] = []
    with scratch() as folder, databases("") as [url], django_on(url):
        os.environ["BENCH_STEPLOG"] = str(folder / "steps.log")
        log, peer = StepLog(folder / "steps.log"), Ours(url)

        def measured(label: str, steps: int, sweep: bool = False) -> None:
            runs = []
            for repeat in range(REPEATS):
                empty_redis()
                runs.append(
                    run_once(
                        peer,
                        url,
                        plans=max(8, total // steps),
                        steps=steps,
                        tag=f"{label}-{repeat}".replace(" ", "-"),
                        log=log,
                        folder=folder,
                    )
                )
            figures = {name: [run[name] for run in runs] for name in runs[0]}
            took = sweep_ms() if sweep else None
            say(what=label, **{name: round(statistics.median(each)) for name, each in figures.items()}, sweep_ms=took)
            lines.append([label, *(spread(each) for each in figures.values()), took or "–"])

        for steps in LENGTHS:
            measured(f"{steps} steps a plan", steps)
        for size in tables:
            fill(peer, size)
            measured(f"{size} other plans", STEPS_A_PLAN, sweep=True)
        whole = query_plans(peer)
    table(["what", "steps/s", "worker CPU µs a step", "PostgreSQL CPU µs a step", "one sweep, ms"], lines)
    say(whole_tables_read=whole)


if __name__ == "__main__":
    main(sys.argv[1:])
