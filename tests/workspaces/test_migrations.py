"""Migrations of tables that are written all day: beside running work, there and back, to one and the same end."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from config import first_start
from observability.models import AgentInteraction
from plan.models import ExecutionPlan
from tests.support.plans import hold_plan, llm_step
from tests.support.processes import database_url
from tests.support.runs import make_turn
from tests.support.waiting import wait_until
from workspaces.migrating import dropped, made

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE = [
    ("capstan_chat", "0001_initial"),
    ("capstan_plan", "0002_board"),
    ("capstan_tools", "0002_external_key"),
    ("capstan_observability", "0001_initial"),
    ("capstan_events", "0001_initial"),
]


def rows(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def indexes() -> set[tuple[str, str]]:
    return set(rows("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"))


def columns() -> set[tuple[str, str, str]]:
    return set(
        rows("SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'")
    )


def checks() -> set[str]:
    return {name for (name,) in rows("SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid <> 0")}


def migrate(targets: list[tuple[str, str]] | None = None) -> list[str]:
    """Go there, else to the newest; what was done to the tables."""
    executor = MigrationExecutor(connection)
    done: list[str] = []

    def note(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if re.match(r"ALTER|CREATE|DROP|SET CONSTRAINTS|LOCK", str(sql)):
            done.append(str(sql))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        executor.migrate(targets or executor.loader.graph.leaf_nodes())
    return done


@pytest.fixture
def newest() -> Iterator[None]:
    """Whatever happens, the tests after this one find their tables."""
    yield
    migrate()


@pytest.mark.usefixtures("newest")
def test_indexes_and_checks_change_beside_running_work_also_after_a_migration_that_was_cut_off() -> None:
    plan = hold_plan(llm_step("a"))
    make_turn()
    AgentInteraction.objects.create(
        workspace=plan.workspace, correlation_id="c", owner_kind="step", owner_id=1, plan_id=plan.pk, latency_ms=1
    )
    whole = indexes(), columns(), checks()
    migrate(BEFORE)
    old = indexes()
    assert (len(old - whole[0]), len(checks() - whole[2]), columns()) == (17, 31, whole[1])
    for statement in (  # half done, and two are there by name only, as PostgreSQL leaves what it could not finish
        *made("ledger_correlation", '"capstan_tools_toolexecution" ("tool_name")'),
        *made("ledger_plan_new", '"capstan_tools_toolexecution" ("tool_name")'),
        *dropped("ledger_plan"),
    ):
        with connection.cursor() as cursor:
            cursor.execute(statement)
    done = migrate()
    on_indexes = [statement for statement in done if "INDEX" in statement]
    assert len(on_indexes) > 20
    assert [each for each in on_indexes if "CONCURRENTLY" not in each and "RENAME" not in each] == []
    others = [each for each in done if each not in on_indexes]
    assert {re.sub(r'"\w+"', "…", each) for each in others} == {"ALTER TABLE … DROP CONSTRAINT …"}
    assert all(each.endswith('_check"') for each in others)
    assert (indexes(), columns(), checks()) == whole


def test_a_process_of_the_version_before_goes_on_inserting_plans() -> None:
    plan = hold_plan(llm_step("a"))
    known = [f.column for f in ExecutionPlan._meta.concrete_fields if f.column not in {"id", "board"}]
    listed = ", ".join(known)
    table = ExecutionPlan._meta.db_table
    (row,) = rows(f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {table} WHERE id = %s RETURNING id", plan.pk)
    assert ExecutionPlan.objects.get(pk=row[0]).board == {}
    assert (ExecutionPlan().board, hold_plan(llm_step("a")).board) == ({}, {})


def test_a_start_that_waits_for_the_migrations_of_another_does_not_hold_them_up() -> None:
    """An index that is made concurrently waits for every statement that runs, also for one that waits for its maker."""
    answers: list[bool] = []

    def start() -> None:
        try:
            answers.append(first_start.migrate())
        finally:
            connection.close()

    waiting = threading.Thread(target=start)
    with psycopg.connect(database_url(), autocommit=True) as migrating:
        migrating.execute("SELECT pg_advisory_lock(%s)", [first_start.MIGRATION_LOCK])
        waiting.start()
        asking = """SELECT pid FROM pg_stat_activity WHERE datname = current_database()
                    AND query LIKE '%%advisory_lock(%%' AND pid NOT IN (%s, pg_backend_pid())"""
        wait_until(lambda: rows(asking, migrating.info.backend_pid), 10, what="the other start")
        migrating.execute("CREATE TABLE made_beside (id int)")
        try:
            for statement in made("made_beside_id", "made_beside (id)"):
                migrating.execute(statement.encode())
        finally:
            migrating.execute("DROP TABLE made_beside")
    waiting.join(30)
    assert answers == [False]
