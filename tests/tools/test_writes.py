"""Write tools stay inside the run's transaction: each of the ways out, and what bars it (design § 5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, connections, models, transaction

from context.models import ScopeVersion
from events.models import Event
from events.types import EventName
from tests.support.runs import claim, make_plan
from tests.tools.conftest import MakeContext, call_of, executor_of
from tools.executor import Outcome
from tools.models import ToolExecution
from tools.registry import Registry, tool
from tools.runs import RunRef
from tools.types import ToolContext
from tools.units import Unit, in_unit
from workspaces.models import Workspace

ADD = "capstan_workspaces.add_workspace"
local = Registry()
hooks: list[str] = []
meanwhile: dict[str, Callable[[], None]] = {}


@tool(effect="write", permission=ADD, timeout_s=0.5, registry=local)
def make(how: str, context: ToolContext) -> str:
    """Writes a row and an event, then does what `how` says."""
    Workspace.objects.create(slug="inside", name="in")
    assert context.events is not None
    context.events.record(EventName.BLACKBOARD, how=how)
    transaction.on_commit(lambda: hooks.append(how))
    ways = {
        "fine": lambda: None,
        "caught": _catch_an_error,
        "deferred": _break_a_deferred_constraint,
        "sleeps": lambda: _sql("SELECT pg_sleep(5)"),
        "locked": lambda: Workspace.objects.select_for_update().get(slug="north"),
        "commits": lambda: _sql("COMMIT"),
        "rolls back": lambda: _sql(" rollback"),
        "commits raw": connection.commit,
        "marks": lambda: transaction.set_rollback(True),
        "durable": _durable,
        "inner": _inner,
        "raises": _raise,
        "meanwhile": lambda: meanwhile["now"](),
    }
    ways[how]()
    return how


def _sql(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


def _catch_an_error() -> None:
    with suppress(IntegrityError):
        Workspace.objects.create(slug="inside", name="twice")


def _break_a_deferred_constraint() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO capstan_workspaces_membership (user_id, workspace_id, created_at)"
            " VALUES (-1, (SELECT id FROM capstan_workspaces_workspace LIMIT 1), now())"
        )


def _durable() -> None:
    with transaction.atomic(durable=True):
        pass


def _inner() -> None:
    try:
        with transaction.atomic():
            Workspace.objects.create(slug="inside", name="twice")
    except IntegrityError:
        Workspace.objects.create(slug="second", name="after an inner savepoint")


def _raise() -> None:
    raise LookupError("no such thing")


@pytest.fixture
def run(workspace: Workspace) -> RunRef:
    hooks.clear()
    return claim(make_plan(workspace=workspace))


Write = Callable[[str], Outcome]


@pytest.fixture
def write(run: RunRef, context_of: MakeContext) -> Write:
    """Calls the tool in a unit of the run, beside a row that the unit itself writes."""

    def call(how: str) -> Outcome:
        executor, context = executor_of(local), context_of()
        checked = executor.check(call_of("make", how=how), context)

        def body(unit: Unit) -> Outcome:
            outcome = executor.run_in_unit(unit, checked, context)
            executor.record(unit, checked, context, outcome)
            Workspace.objects.create(slug="unit", name="the unit's own row")
            return outcome

        return in_unit(run, body)

    return call


def slugs() -> set[str]:
    return set(Workspace.objects.exclude(slug__startswith="space").values_list("slug", flat=True))


def test_a_write_commits_with_its_unit(write: Write, run: RunRef) -> None:
    assert write("fine").envelope == {"success": True, "result": "fine", "error": None}
    assert slugs() == {"north", "inside", "unit"}
    assert hooks == ["fine"]
    assert list(Event.objects.filter(stream=run.stream_id).values_list("name", flat=True)) == ["blackboard"]
    assert ScopeVersion.objects.current(run.workspace_id) == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("caught", "caught a database error without a savepoint"),
        ("deferred", "violates foreign key constraint"),
        ("sleeps", "timed out after 0.5 s"),
        ("commits", "cannot end it"),
        ("rolls back", "cannot end it"),
        ("commits raw", "TransactionManagementError"),
        ("marks", "marked the run's transaction for rollback"),
        ("durable", "durable"),
        ("raises", "LookupError: no such thing"),
    ],
)
def test_a_write_that_fails_leaves_nothing_and_its_unit_goes_on(how: str, told: str, write: Write, run: RunRef) -> None:
    outcome = write(how)
    assert outcome.status == "failed"
    assert told in str(outcome.envelope["error"])
    assert slugs() == {"north", "unit"}
    assert hooks == []
    assert Event.objects.filter(stream=run.stream_id).count() == 0
    assert ScopeVersion.objects.current(run.workspace_id) == 0
    assert ToolExecution.objects.get().status == "failed"


def test_an_error_caught_in_the_tools_own_savepoint_is_its_own_business(write: Write) -> None:
    assert write("inner").envelope["success"]
    assert slugs() == {"north", "inside", "second", "unit"}


def test_a_lock_somebody_holds_times_out(write: Write) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Workspace.objects.select_for_update(no_key=True).get(slug="north")  # foreign keys to it stay free
            held.set()
            done.wait(20)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    try:
        outcome = write("locked")
    finally:
        done.set()
        holder.join(timeout=20)
    assert "timed out" in str(outcome.envelope["error"])
    assert slugs() == {"north", "unit"}


def test_limits_are_put_back_after_the_call(run: RunRef, context_of: MakeContext) -> None:
    executor, context = executor_of(local), context_of()
    checked = executor.check(call_of("make", how="fine"), context)

    def body(unit: Unit) -> tuple[Any, ...]:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '77s'")
        executor.run_in_unit(unit, checked, context)
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
            row: tuple[Any, ...] = cursor.fetchone()
        return row

    assert in_unit(run, body) == ("77s", "0")


def test_another_database_is_refused_during_a_write(write: Write, run: RunRef) -> None:
    connections.settings["elsewhere"] = dict(connections.settings["default"])

    def ask_elsewhere() -> None:
        with connections["elsewhere"].cursor() as cursor:
            cursor.execute("SELECT 1")

    try:
        connections["elsewhere"].connect()
        meanwhile["now"] = ask_elsewhere
        outcome = write("meanwhile")
        ask_elsewhere()  # outside the call it is nobody's business
    finally:
        connections["elsewhere"].close()
        connections["elsewhere"].close_pool()
        del connections["elsewhere"]
        del connections.settings["elsewhere"]
    assert "default database alone" in str(outcome.envelope["error"])
    assert slugs() == {"north", "unit"}


class _Deadlock:
    """Another transaction that locks two rows in the order opposite to the unit's, so that one of them must die."""

    def __init__(self) -> None:
        self.locked, self.go, self.times = threading.Event(), threading.Event(), 0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with transaction.atomic():
                connection.cursor().execute("SET LOCAL deadlock_timeout = '30s'")
                self._touch("b")
                self.locked.set()
                self.go.wait(20)
                self._touch("a")
        except DatabaseError:
            pass
        finally:
            connection.close()

    def meet(self) -> None:
        """Called inside the write tool, at its first run only."""
        self.times += 1
        self._touch("a")
        if self.times == 1:
            self.thread.start()
            assert self.locked.wait(10)
            self.go.set()
        self._touch("b")

    @staticmethod
    def _touch(slug: str) -> None:
        Workspace.objects.filter(slug=slug).update(name=models.F("name"))


@tool(effect="write", permission=ADD, timeout_s=20, registry=local)
def notify() -> str:
    """Meets a deadlock."""
    meanwhile["now"]()
    return "through"


def test_a_deadlock_runs_the_unit_again_from_the_start(run: RunRef, context_of: MakeContext) -> None:
    for slug in ("a", "b"):
        Workspace.objects.create(slug=slug, name=slug)
    clash = _Deadlock()
    meanwhile["now"] = clash.meet
    executor, context = executor_of(local), context_of()
    checked = executor.check(call_of("notify"), context)
    bodies: list[int] = []

    def body(unit: Unit) -> Outcome:
        bodies.append(1)
        outcome = executor.run_in_unit(unit, checked, context)
        executor.record(unit, checked, context, outcome)
        return outcome

    assert in_unit(run, body).envelope["result"] == "through"
    clash.thread.join(timeout=20)
    assert (len(bodies), clash.times) == (2, 2)
    assert ToolExecution.objects.get().status == "succeeded"
