"""SnapshotService: the domain's state as JSON, for layer 4 of the prompt (CAP-037, CAP-038)."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, TypedDict, cast

from django.db import connection
from django.utils import timezone

from context import cache
from context.errors import SnapshotInvalid, UnknownScope
from context.models import ScopeVersion
from context.registry import RegisteredBuilder, SnapshotScope, builders
from context.settings import context_settings
from context.summary import within_budget
from workspaces.models import Membership, User, Workspace


class SnapshotPayload(TypedDict):
    """What `get_or_build` gives. `summary` tells that the whole did not fit its budget."""

    snapshot: dict[str, Any]
    version: int
    generated_at: str
    summary: bool


_building: dict[str, threading.Lock] = {}
_building_guard = threading.Lock()


class SnapshotService:
    """Builds snapshots from what the domain apps registered, and keeps them as long as their version is current."""

    def get_or_build(self, scope_id: str, *, user_id: int | None = None) -> SnapshotPayload:
        """The snapshot of a workspace at its version now.

        The version is read before the data: a write that lands in between makes the snapshot newer than its key says,
        never older. One caller builds, the others wait for what it builds.

        Args:
            scope_id: the workspace's key.
            user_id: whose view; where a builder depends on the user, the snapshot is kept for this user alone.

        Raises:
            UnknownScope: no such workspace, or the user does not belong to it.
            SnapshotInvalid: a builder gave something that is no plain JSON.

        Source: CAP-037, CAP-038.
        """
        workspace, user = _scope(scope_id, user_id)
        wanted = sorted(builders.values(), key=lambda builder: builder.name)
        view = str(user.pk) if user is not None and any(builder.per_user for builder in wanted) else "-"
        version = ScopeVersion.objects.current(workspace.pk)
        key = f"agent:snapshot:{workspace.pk}:{view}:{version}"
        known = cache.read(key)
        if known is None:
            known = self._build_once(key, wanted, SnapshotScope(workspace=workspace, user=user), version)
        return cast("SnapshotPayload", known)  # written by this class alone

    def _build_once(
        self, key: str, wanted: list[RegisteredBuilder], scope: SnapshotScope, version: int
    ) -> dict[str, Any]:
        own = context_settings()
        with _building_guard:
            lock = _building.setdefault(key, threading.Lock())
        if not connection.in_atomic_block:
            connection.close()  # nothing holds a connection while it waits (design § 2.5)
        try:
            with lock:
                until = time.monotonic() + own.build_wait_s
                while True:
                    known = cache.read(key)
                    if known is not None:
                        return known
                    if cache.try_lock(key, seconds=own.build_wait_s) or time.monotonic() > until:
                        break
                    time.sleep(0.02)  # another process builds
                try:
                    payload = self._build(wanted, scope, version)
                    cache.write(key, payload, ttl_s=own.ttl_s)
                finally:
                    cache.unlock(key)
                return payload
        finally:
            with _building_guard:
                _building.pop(key, None)

    def _build(self, wanted: list[RegisteredBuilder], scope: SnapshotScope, version: int) -> dict[str, Any]:
        snapshot: dict[str, Any] = {}
        for builder in wanted:
            part = builder.build(scope if builder.per_user else SnapshotScope(workspace=scope.workspace, user=None))
            try:
                snapshot[builder.name] = json.loads(json.dumps(part, allow_nan=False))
            except (TypeError, ValueError) as exc:
                raise SnapshotInvalid(builder=builder.name, problem=str(exc)) from exc
        cut, is_summary = within_budget(snapshot, budget=context_settings().budget_tokens)
        return {
            "snapshot": cut,
            "version": version,
            "generated_at": timezone.now().isoformat(),
            "summary": is_summary,
        }


def _scope(scope_id: str, user_id: int | None) -> tuple[Workspace, User | None]:
    if user_id is None:
        workspace = Workspace.objects.filter(pk=scope_id).first() if str(scope_id).isdecimal() else None
        if workspace is None:
            raise UnknownScope(scope_id=scope_id)
        return workspace, None
    member = (
        Membership.objects.select_related("workspace", "user")
        .filter(workspace_id=scope_id, user_id=user_id, user__is_active=True)
        .first()
        if str(scope_id).isdecimal()
        else None
    )
    if member is None:
        raise UnknownScope(scope_id=scope_id, user_id=user_id)
    return member.workspace, member.user
