"""The state folder (`CAPSTAN_STATE_DIR`): one manager at a time, and where its servers can be found.

Whoever runs here holds an flock on `lock`. The manager's children inherit the descriptor, so the lock is free only when
the last of them has ended: two servers never share one data folder, even after the manager was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from config.errors import StartRefused

PROBE_GRACE_S = 1.0  # somebody who only asks holds the lock for an instant
LEFTOVER_PATIENCE_S = 10.0  # a killed manager's servers write their last page
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Servers:
    """Where PostgreSQL and Redis (or Valkey) answer."""

    database_url: str
    redis_url: str


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths under the state folder, and its lock.

    Args:
        path: absolute; it need not exist yet.
    """

    path: Path

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def servers_file(self) -> Path:
        return self.path / "servers.json"

    @property
    def password_file(self) -> Path:
        return self.path / "admin-password"

    @property
    def beat_schedule(self) -> Path:
        return self.path / "celerybeat-schedule"

    def create(self) -> None:
        """Make the folder where it is missing; as root others may pass through it, since the servers drop to `nobody`.

        Raises:
            StartRefused: it cannot be made or written.
        """
        try:
            if not self.path.exists():
                self.path.mkdir(parents=True)
                self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
        except OSError as exc:
            raise StartRefused(
                f"The state folder {self.path} cannot be made ({exc.strerror}): set CAPSTAN_STATE_DIR."
            ) from exc
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise StartRefused(
                f"The state folder {self.path} cannot be written: set CAPSTAN_STATE_DIR to one of yours."
            )

    def lock(self) -> int:
        """Take the folder for this process and the children that inherit the descriptor.

        Returns:
            The descriptor that holds the lock.

        Raises:
            StartRefused: another manager runs here, or what it left behind does not end.
        """
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StartRefused(f"{self.lock_file} cannot be opened ({exc.strerror}): set CAPSTAN_STATE_DIR.") from exc
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited, owner = time.monotonic() - started, _pid_in(descriptor)
                if waited > PROBE_GRACE_S and owner is not None and _alive(owner):
                    os.close(descriptor)
                    raise StartRefused(
                        f"Capstan already runs on the state folder {self.path} (process {owner}): "
                        "stop that one first, or set CAPSTAN_STATE_DIR."
                    ) from None
                if waited > LEFTOVER_PATIENCE_S:
                    os.close(descriptor)
                    raise StartRefused(f"An earlier start's processes hold {self.lock_file}: end them first.") from None
                time.sleep(POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor

    def in_use(self) -> bool:
        """Whether a manager, or a server of one, runs here."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def announce(self, servers: Servers) -> None:
        """Tell every `manage.py` with this state folder where the servers are; true while the lock is held."""
        draft = self.servers_file.with_suffix(".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # a URL may carry a password
        with os.fdopen(descriptor, "w") as file:
            json.dump({"database_url": servers.database_url, "redis_url": servers.redis_url}, file)
        draft.replace(self.servers_file)

    def withdraw(self) -> None:
        """Say that the servers are gone."""
        self.servers_file.unlink(missing_ok=True)

    def running_servers(self) -> Servers | None:
        """The servers that run on this state folder, None when there are none."""
        try:
            found = json.loads(self.servers_file.read_text())
            servers = Servers(database_url=found["database_url"], redis_url=found["redis_url"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return servers if self.in_use() else None


def _pid_in(descriptor: int) -> int | None:
    written = os.pread(descriptor, 20, 0)
    return int(written) if written.isdigit() else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
