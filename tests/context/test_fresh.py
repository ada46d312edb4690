"""No chat reads a snapshot older than the last commit before its turn began (CAP-038)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from context.models import ScopeVersion
from context.registry import builders, snapshot_builder
from context.services import SnapshotService
from tests.support.runs import make_user, make_workspace
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db(transaction=True)


def test_cap_038_fifty_chats_and_writes_at_once(redis):
    kept = dict(builders)
    builders.clear()

    @snapshot_builder("spaces")
    def spaces(scope):
        return {"name": int(Workspace.objects.get(pk=scope.workspace.pk).name)}

    workspace = make_workspace(user := make_user())
    Workspace.objects.filter(pk=workspace.pk).update(name="0")

    def on_own_connection(work):
        try:
            return work()
        finally:
            connection.close()

    def write() -> None:
        with transaction.atomic():  # the row lock makes the writes one after the other
            row = Workspace.objects.select_for_update().get(pk=workspace.pk)
            Workspace.objects.filter(pk=row.pk).update(name=str(int(row.name) + 1))
            ScopeVersion.objects.bump([workspace.pk])

    def read() -> tuple[int, int]:
        committed = int(Workspace.objects.get(pk=workspace.pk).name)  # before this turn began
        got = SnapshotService().get_or_build(workspace.scope_id, user_id=user.pk)
        return committed, got["snapshot"]["spaces"]["name"]

    try:
        with ThreadPoolExecutor(16) as pool:
            writes = [pool.submit(on_own_connection, write) for _ in range(25)]
            reads = [pool.submit(on_own_connection, read) for _ in range(50)]
            pairs = [one.result(60) for one in reads]
            for one in writes:
                one.result(60)
    finally:
        builders.clear()
        builders.update(kept)
    assert all(seen >= committed for committed, seen in pairs), pairs
    assert ScopeVersion.objects.current(workspace.pk) == 25
