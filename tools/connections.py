"""What a tool's database connection may do while the tool runs (design § 5 "Write tools").

A read outside the unit gets connections of its own that are read-only and limited from the moment they open; a write
stays on the unit's connection, in a savepoint, and may touch neither the transaction itself nor another database.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import sql as pg_sql
from psycopg.pq import TransactionStatus

from tools.errors import ToolTimeout, UnitBroken

_limits = threading.local()
_CONTROL = re.compile(r"\s*(BEGIN|START|COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+TO\b))\b", re.IGNORECASE)
_BROKEN = (
    "the tool marked the run's transaction for rollback, closed its connection, or caught a database error without"
    " a savepoint (atomic()) of its own"
)
_LIMIT = """
    WITH old AS MATERIALIZED (
        SELECT current_setting('statement_timeout') AS statement, current_setting('lock_timeout') AS locks)
    SELECT statement, locks, set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true) FROM old
"""
_LIMIT_READ = _LIMIT.replace(" FROM old", ", set_config('transaction_read_only', 'on', true) FROM old")


def install() -> None:
    """Watch connections as they open; called once, when apps are ready."""
    connection_created.connect(_limit_new_connection, dispatch_uid="tools.connections")


@contextmanager
def read_only_connections(timeout_s: float) -> Iterator[None]:
    """Connections this thread opens inside are read-only, `timeout_s` seconds a statement, and closed at the end."""
    _limits.timeout_ms = _milliseconds(timeout_s)
    try:
        yield
    finally:
        _limits.timeout_ms = None
        close_connections()


def close_connections() -> None:
    """Close this thread's connections, settings as they were."""
    for opened in connections.all(initialized_only=True):
        raw = opened.connection
        if isinstance(raw, psycopg.Connection) and not raw.closed:
            _restore(raw)
        opened.close()


def _limit_new_connection(connection: BaseDatabaseWrapper, **_: Any) -> None:
    timeout_ms = getattr(_limits, "timeout_ms", None)
    if timeout_ms is not None and connection.vendor == "postgresql":
        connection.connection.execute(
            "SELECT set_config('default_transaction_read_only', 'on', false),"
            " set_config('statement_timeout', %s, false)",
            [str(timeout_ms)],
        )


def _restore(raw: psycopg.Connection[Any]) -> None:
    try:
        if raw.info.transaction_status != TransactionStatus.IDLE:
            raw.rollback()
        raw.execute("RESET default_transaction_read_only; RESET statement_timeout")
        if raw.info.transaction_status != TransactionStatus.IDLE:
            raw.commit()
    except psycopg.Error:
        raw.close()  # the pool throws it away


@contextmanager
def inside_savepoint(timeout_s: float, *, read_only: bool) -> Iterator[None]:
    """Limit what runs inside, on the unit's connection; the caller has opened a savepoint.

    Raises:
        UnitBroken: the tool ended or marked the transaction, or asked for another database.
        ToolTimeout: it began another statement after its time.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LIMIT_READ if read_only else _LIMIT, [str(_milliseconds(timeout_s))] * 2)
        before = cursor.fetchone()[:2]
    with ExitStack() as watches:
        watches.enter_context(connection.execute_wrapper(_watch(time.monotonic() + timeout_s)))
        for alias in connections:
            if alias != DEFAULT_DB_ALIAS:
                watches.enter_context(connections[alias].execute_wrapper(_refuse_other_database))
        yield
    if connection.needs_rollback or connection.closed_in_transaction:
        raise UnitBroken(reason=_BROKEN)
    if not read_only:
        connection.check_constraints()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true)", list(before)
        )


def _watch(deadline: float) -> Callable[..., Any]:
    def watch(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        text = sql.as_string(None) if isinstance(sql, pg_sql.Composable) else str(sql)
        if _CONTROL.match(text):
            raise UnitBroken(
                reason="a write tool runs inside the run's transaction and cannot end it",
                cure="effect='external' for a tool that needs a transaction of its own",
            )
        if time.monotonic() > deadline:
            raise ToolTimeout
        return execute(sql, params, many, context)

    return watch


def _refuse_other_database(execute: Callable[..., Any], *_: Any) -> Any:
    raise UnitBroken(
        reason="a write tool may use the default database alone; another one would not commit with it",
        cure="effect='external' for a tool that writes elsewhere",
    )


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
