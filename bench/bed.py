"""What the benches share: databases and processes that go away whatever happens, the step log, figures, tables.

Settings (environment):

    DATABASE_URL, REDIS_URL     the servers; each bench makes databases of its own there and drops them again
    BENCH_DATABASE              how those are called (`capstan_bench`); two runs at once need two names
    BENCH_REDIS_DATABASE        the first of two Redis databases that are emptied (14)

What a bench empties or drops bears its mark; what is there without it is somebody's, and the bench refuses to start.
    BENCH_VENVS                 a folder with a virtual environment for each peer (`bench/README.md`)
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DATABASE = os.environ.get("BENCH_DATABASE", "capstan_bench")
REDIS = int(os.environ.get("BENCH_REDIS_DATABASE", "14"))
MARK = "made by Capstan's benches"
QUIET = {"PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
# As in production: with DEBUG Django writes down every statement. No bench asks this model anything.
PRODUCTION = {
    "DEBUG": "false",
    "ALLOWED_HOSTS": "127.0.0.1",
    "LLM_PROVIDER": "openai",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    "OPENAI_API_KEY": "nobody",
    **{f"LLM_TIER_{tier}": "nobody" for tier in ("PLANNING", "EXECUTION", "FIELD")},
}
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


# -- the bed


def stop_on_signals() -> None:
    """Ctrl-C and SIGTERM unwind, so that processes and databases go away; what comes after the first is not heard."""

    def stop(number: int, _frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)


def redis_url(place: int) -> str:
    """One of the two Redis databases of this run, 0 or 1, emptied by `empty_redis`."""
    server = os.environ.get("BENCH_REDIS_URL") or os.environ["REDIS_URL"]
    return urlunsplit(urlsplit(server)._replace(path=f"/{REDIS + place}")) if "unix" not in server[:5] else (
        server.partition("?")[0] + f"?db={REDIS + place}"
    )  # fmt: skip


def empty_redis() -> None:
    """FLUSHDB on both, unless one holds what no bench put there."""
    import redis

    for place in (0, 1):
        with redis.Redis.from_url(redis_url(place)) as client:
            if client.dbsize() and not client.exists(MARK):
                raise SystemExit(f"Redis database {REDIS + place} is not empty: set BENCH_REDIS_DATABASE to another")
            client.flushdb()
            client.set(MARK, 1)


@contextmanager
def databases(*suffixes: str) -> Iterator[list[str]]:
    """Fresh empty databases, one a suffix, as URLs; dropped at the end, with whoever is still connected.

    One that a run left behind which was killed is dropped too.
    """
    import psycopg

    server = os.environ["DATABASE_URL"]
    names = [DATABASE + suffix for suffix in suffixes]

    def drop() -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            for name in names:
                connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    with psycopg.connect(server, autocommit=True) as alone:
        for name in [*names, redis_url(0)] if "" in suffixes else names:
            # two runs on one of them would pull the ground from under each other
            if alone.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [f"bench {name}"]).fetchone() != (True,):
                raise SystemExit(f"another bench runs on {name}: set BENCH_DATABASE and BENCH_REDIS_DATABASE")
        for name in names:
            query = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
            if alone.execute(query, [name]).fetchone() not in {None, (MARK,)}:
                raise SystemExit(f"database {name} is there already, and no bench made it: name another BENCH_DATABASE")
        drop()
        try:
            for name in names:
                alone.execute(f'CREATE DATABASE "{name}"'.encode())
                alone.execute(f'COMMENT ON DATABASE "{name}" IS $${MARK}$$'.encode())
            yield [urlunsplit(urlsplit(server)._replace(path=f"/{name}")) for name in names]
        finally:
            drop()


@contextmanager
def django_on(url: str) -> Iterator[None]:
    """Django, migrated, on this database and on the first of the Redis databases; its connections closed at the end."""
    os.environ.setdefault("BENCH_REDIS_URL", os.environ["REDIS_URL"])
    os.environ.update(PRODUCTION, DATABASE_URL=url, REDIS_URL=redis_url(0))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    sys.path[:0] = [str(ROOT), str(HERE)]
    import logging

    import django

    from config import collector

    with collector.paused():
        django.setup()
    logging.disable(logging.INFO)
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", verbosity=0)
    try:
        yield
    finally:
        connections.close_all()


def own_database() -> None:
    """For a bench whose imports need Django: a database of this run, gone when the process ends."""
    stop_on_signals()
    stack = ExitStack()
    atexit.register(stack.close)
    [url] = stack.enter_context(databases(""))
    stack.enter_context(django_on(url))


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of this run."""
    folder = Path(tempfile.mkdtemp(prefix="capstan-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Processes:
    """Child processes, each with its own process group, killed together."""

    def __init__(
        self, commands: Sequence[Sequence[str]], *, env: Mapping[str, str], log: Path, cwd: Path = HERE
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self.all = [
                subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env=dict(env),
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    preexec_fn=_die_with_us,
                )
                for argv in commands
            ]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_exc: object) -> None:
        for process in self.all:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def alive(self) -> bool:
        """Whether none of them has ended."""
        return all(process.poll() is None for process in self.all)

    def signal(self, number: int) -> None:
        """Send a signal to all of them and their children."""
        for process in self.all:
            os.killpg(process.pid, number)

    def last_lines(self) -> str:
        """What they said last, for a failure's message."""
        return self.log.read_text(errors="replace")[-2000:]

    def rss_mb(self) -> list[float]:
        """Resident memory of each, MB; 0 for one that has ended."""
        return [_rss_mb(process.pid) for process in self.all]

    def cpu_s(self) -> float:
        """User and system seconds of all of them so far, children included."""
        return sum(self.cpu_of_each_s())

    def cpu_of_each_s(self) -> list[float]:
        """The same for each, in the order of the commands."""
        groups = dict.fromkeys((process.pid for process in self.all), 0.0)
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[2]) in groups:
                        groups[int(fields[2])] += (int(fields[11]) + int(fields[12])) * _TICK_S
        return list(groups.values())


def _die_with_us() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, where there is one


def _rss_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1) if "VmRSS:" in status else 0.0


class Backends:
    """CPU time of a database's backends, where the server runs on this machine."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)
        self._before: dict[int, float] = {}

    def close(self) -> None:
        self._connection.close()

    def _read(self) -> dict[int, float]:
        found = self._connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
        spent = {}
        for (pid,) in found:
            with suppress(OSError):
                spent[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        return spent

    def begin(self) -> None:
        self._before = self._read()

    def spent_s(self) -> float:
        """Seconds since `begin`; 0 where they cannot be seen."""
        return sum(spent - self._before.get(pid, 0.0) for pid, spent in self._read().items())


# -- the step log


class StepLog:
    """What the steps note (`plan_step.py`): read on from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        self.path.write_bytes(b"")
        self._place, self.lines = 0, list[tuple[str, int, float]]()
        self._ends: dict[str, int] = {}

    def read(self) -> list[tuple[str, int, float]]:
        """All executions so far: plan, number, when (monotonic seconds)."""
        with self.path.open("rb") as file:
            file.seek(self._place)
            whole = file.read().rpartition(b"\n")
        self._place += len(whole[0]) + len(whole[1])
        for line in whole[0].decode().splitlines():
            plan, number, _pid, at = line.split()
            self.lines.append((plan, int(number), float(at)))
            self._ends[plan] = max(self._ends.get(plan, 0), int(number) + 1)
        return self.lines

    def wait_for(self, names: Sequence[str], steps: int, *, limit_s: float, by: Processes, every: float = 0.02) -> bool:
        """Whether all these plans ran their last step in time, by processes that are all alive."""
        until, missing = time.monotonic() + limit_s, set(names)
        while missing and time.monotonic() < until and by.alive():
            self.read()
            missing = {name for name in missing if self._ends.get(name, 0) < steps}
            if missing:
                time.sleep(every)
        return not missing


# -- figures


def known(asked: str, names: Collection[str]) -> list[str]:
    """A comma-separated list of names, all of them known."""
    wanted = asked.split(",")
    if unknown := [name for name in wanted if name not in names]:
        raise SystemExit(f"nobody is called {', '.join(unknown)}; there are {', '.join(names)}")
    return wanted


def peer_python(name: str) -> str | None:
    """The interpreter that a peer is installed for; None: it is not here."""
    folder = os.environ.get("BENCH_VENVS")
    python = Path(folder or "/nowhere") / name / "bin" / "python"
    return str(python) if python.exists() else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 – 1) of them do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median and range, such as `3,418 (3,225 – 3,836)`."""
    if not values:
        return "–"
    middle = statistics.median(values)
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f} – {max(values):,.{digits}f})"


def say(**line: Any) -> None:
    """One JSON line."""
    print(json.dumps(line), flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A Markdown table."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print("\n".join(["", *lines, ""]), flush=True)
