"""Claim, readiness, sweep and the hot path look rows up; none of them reads a whole table (issue 6 "Speed")."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model

from context.models import ScopeVersion
from events.models import Stream
from plan import hot, steering
from plan.models import ExecutionPlan, PlanStep
from tests.support.plans import hold_plan, llm_step
from tests.support.runs import claim
from tools.quick import QuickCall
from workspaces.models import Membership, User, Workspace

pytestmark = pytest.mark.django_db

ENDED, STEPS = 4_000, 5


def columns_of(model: type[Model], *but: str) -> list[str]:
    return [f'"{field.column}"' for field in model._meta.concrete_fields if field.column not in but]


@pytest.fixture
def plan() -> ExecutionPlan:
    """A pending plan among thousands that have ended."""
    sample = hold_plan(*[llm_step(f"s{n}") for n in range(STEPS)])
    plans, steps = ExecutionPlan._meta.db_table, PlanStep._meta.db_table
    with connection.cursor() as cursor:
        columns = [
            f.column for f in ExecutionPlan._meta.concrete_fields if f.column not in {"id", "status", "ended_at"}
        ]
        listed = ", ".join(columns)
        cursor.execute(
            f"INSERT INTO {plans} ({listed}, status, ended_at) SELECT {listed}, 'completed', now() FROM {plans}, "
            f"generate_series(1, {ENDED}) WHERE id = %s",
            [sample.pk],
        )
        columns = [
            f'"{f.column}"' for f in PlanStep._meta.concrete_fields if f.column not in {"id", "plan_id", "status"}
        ]
        listed = ", ".join(columns)
        cursor.execute(
            f"INSERT INTO {steps} ({listed}, plan_id, status) SELECT {', '.join(f's.{c}' for c in columns)}, p.id, "
            f"'skipped' FROM {steps} s, {plans} p WHERE s.plan_id = %s AND p.id <> %s",
            [sample.pk, sample.pk],
        )
        cursor.execute(f"ANALYZE {plans}")
        cursor.execute(f"ANALYZE {steps}")
    return sample


def explained(work: Callable[[], object]) -> str:
    """The plans of every statement that `work` makes on plans and steps."""
    seen: list[tuple[str, Any]] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if "capstan_plan_" in sql and not sql.startswith(("SAVEPOINT", "RELEASE")):
            seen.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        work()
    told = []
    with connection.cursor() as cursor:
        for sql, params in seen:
            if "$1" in sql:
                cursor.execute(f"EXPLAIN (GENERIC_PLAN) {sql}")
            else:
                cursor.execute(f"EXPLAIN {sql}", params)
            told.append("\n".join(row[0] for row in cursor.fetchall()))
    assert told, "no statement was seen"
    return "\n\n".join(told)


def read_whole(told: str) -> set[str]:
    """The tables that a plan reads from end to end, but for those that hold a row or two here."""
    few = {model._meta.db_table for model in (Workspace, User, Membership, Stream, ScopeVersion)}
    return set(re.findall(r"Seq Scan on (\w+)", told)) - few


def test_the_claim_finds_its_plan_by_key(plan):
    assert read_whole(explained(lambda: ExecutionPlan.objects.claim(plan.pk, owner="a"))) == set()


def test_readiness_reads_the_plan_s_own_steps(plan):
    assert read_whole(explained(lambda: PlanStep.objects.next_ready(plan.pk))) == set()


@pytest.mark.parametrize(
    "sweep",
    [
        lambda: ExecutionPlan.objects.take_due(),
        lambda: list(ExecutionPlan.objects.spent().values_list("pk", flat=True)),
        lambda: list(ExecutionPlan.objects.cancel_orphans().values_list("pk", flat=True)),
        steering.wake_idle_plans,
    ],
    ids=["due", "spent", "cancelled", "idle"],
)
def test_the_sweep_reads_open_plans_only(plan, sweep):
    told = explained(sweep)
    assert read_whole(told) == set()
    assert "plan_open" in told


def test_the_hot_path_reads_the_plan_s_own_rows(plan):
    run = claim(plan)

    def both() -> None:
        moved = hot.start_first(run, revision=0, user_id=plan.owner_id)
        assert moved is not None
        assert moved.next_step is not None
        ledger = QuickCall(
            user_id=plan.owner_id, conversation_id=None, tool_name="t", idempotency_key="k", arguments="{}",
            arguments_digest="d", result="{}", duration_ms=0, scope_version=0,
        )  # fmt: skip
        PlanStep.objects.filter(pk=moved.next_step.pk).update(kind="data")
        assert hot.end_data_step(run, step=moved.next_step, revision=0, ledger=ledger)

    assert read_whole(explained(both)) == set()
