"""Which snapshot builders the domain apps bring (CAP-037)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workspaces.models import User, Workspace


@dataclass(frozen=True, slots=True)
class SnapshotScope:
    """What a builder may read: one workspace, and one user where it says so."""

    workspace: Workspace
    user: User | None


SnapshotBuilder = Callable[[SnapshotScope], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RegisteredBuilder:
    name: str
    build: SnapshotBuilder
    per_user: bool


builders: dict[str, RegisteredBuilder] = {}


def snapshot_builder(name: str, *, per_user: bool = False) -> Callable[[SnapshotBuilder], SnapshotBuilder]:
    """Register a builder; found in `agent_snapshot.py` of each domain app.

    Args:
        name: the key of its part in the snapshot; unique.
        per_user: it reads something that depends on the user.

    Raises:
        ValueError: another builder has that name.
    """

    def register(build: SnapshotBuilder) -> SnapshotBuilder:
        known = builders.get(name)
        if known is not None and known.build.__qualname__ != build.__qualname__:
            raise ValueError(f"two snapshot builders are named {name!r}")
        builders[name] = RegisteredBuilder(name=name, build=build, per_user=per_user)
        return build

    return register
