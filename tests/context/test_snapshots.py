"""Snapshots: built once a version, never stale, never too large (CAP-037, CAP-038)."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from context import cache
from context.errors import SnapshotInvalid, UnknownScope
from context.models import ScopeVersion
from context.registry import builders, snapshot_builder
from context.services import SnapshotService
from context.settings import ContextSettings
from context.summary import estimate_tokens, within_budget
from streaming.connection import client
from tests.support.runs import make_user, make_workspace

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def only(redis):
    """Lets a test register builders of its own, and nobody else's."""
    kept = dict(builders)
    builders.clear()
    yield snapshot_builder
    builders.clear()
    builders.update(kept)


def bump(workspace):
    with transaction.atomic():
        ScopeVersion.objects.bump([workspace.pk])


def test_cap_037_a_snapshot_is_built_once_a_version(only):
    built: list[int] = []

    @only("numbers")
    def numbers(scope):
        built.append(scope.workspace.pk)
        return {"n": len(built), "user": scope.user}

    workspace = make_workspace(user := make_user())
    service = SnapshotService()
    first = service.get_or_build(workspace.scope_id, user_id=user.pk)
    assert first["snapshot"] == {"numbers": {"n": 1, "user": None}}  # a builder that is not per user sees none
    assert (first["version"], first["summary"]) == (0, False)
    assert service.get_or_build(workspace.scope_id, user_id=user.pk) == first
    bump(workspace)
    second = service.get_or_build(workspace.scope_id, user_id=user.pk)
    assert (second["version"], second["snapshot"]["numbers"]["n"]) == (1, 2)


def test_a_snapshot_is_kept_as_long_as_the_setting_says(only, settings, redis):
    settings.CAPSTAN_CONTEXT = {"ttl_s": 40}
    workspace = make_workspace()
    SnapshotService().get_or_build(workspace.scope_id)
    assert 30 < redis.ttl(f"agent:snapshot:{workspace.pk}:-:0") <= 40
    assert ContextSettings().ttl_s == 300


def test_a_per_user_builder_makes_a_snapshot_a_user(only):
    @only("mine", per_user=True)
    def mine(scope):
        return {"user": scope.user.pk}

    ann, bob = make_user(), make_user()
    workspace = make_workspace(ann, bob)
    got = [SnapshotService().get_or_build(workspace.scope_id, user_id=u.pk)["snapshot"]["mine"] for u in (ann, bob)]
    assert got == [{"user": ann.pk}, {"user": bob.pk}]


def test_somebody_elses_scope_is_not_there(only):
    workspace = make_workspace(make_user())
    for scope, user in ((workspace.scope_id, make_user().pk), ("0", None), ("nonsense", None)):
        with pytest.raises(UnknownScope):
            SnapshotService().get_or_build(scope, user_id=user)


def test_errata_038_a_write_between_version_and_data_never_leaves_an_old_snapshot_under_a_new_version(only):
    state = {"value": "old"}

    @only("racing")
    def racing(scope):
        seen = state["value"]
        state["value"] = "new"
        if seen == "old":
            bump(scope.workspace)  # a writer commits while we build
        return {"value": seen}

    workspace = make_workspace()
    assert SnapshotService().get_or_build(workspace.scope_id)["snapshot"]["racing"]["value"] == "old"
    assert SnapshotService().get_or_build(workspace.scope_id)["snapshot"]["racing"]["value"] == "new"


def test_one_builds_while_the_others_wait(only):
    built: list[int] = []
    go = threading.Event()

    @only("slow")
    def slow(scope):
        built.append(1)
        go.wait(5)
        return {"n": len(built)}

    workspace = make_workspace()

    def ask(_n):
        try:
            return SnapshotService().get_or_build(workspace.scope_id)["snapshot"]["slow"]["n"]
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, n) for n in range(8)]
        go.set()
        assert [one.result(10) for one in asked] == [1] * 8
    assert built == [1]


def test_while_another_process_builds_one_waits_and_takes_what_it_built(only):
    built: list[int] = []

    @only("slow")
    def slow(scope):
        built.append(1)
        return {"here": True}

    workspace = make_workspace()
    key = f"agent:snapshot:{workspace.pk}:-:0"
    assert cache.try_lock(key, seconds=30)  # as the other process has it
    there = {"snapshot": {"slow": {"here": False}}, "version": 0, "generated_at": "now", "summary": False}
    other = threading.Timer(0.3, lambda: cache.write(key, there, ttl_s=60))
    other.start()
    assert SnapshotService().get_or_build(workspace.scope_id) == there
    other.join()
    assert built == []


def test_of_another_process_that_never_ends_its_build_one_does_not_wait_for_ever(only, settings):
    settings.CAPSTAN_CONTEXT = {"build_wait_s": 0.3}

    @only("slow")
    def slow(scope):
        return {"here": True}

    workspace = make_workspace()
    assert cache.try_lock(f"agent:snapshot:{workspace.pk}:-:0", seconds=30)
    assert SnapshotService().get_or_build(workspace.scope_id)["snapshot"]["slow"] == {"here": True}


def test_without_redis_this_process_keeps_it(only, settings):
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    client.cache_clear()
    built: list[int] = []

    @only("numbers")
    def numbers(scope):
        built.append(1)
        return {}

    workspace = make_workspace()
    try:
        for _ in range(3):
            SnapshotService().get_or_build(workspace.scope_id)
    finally:
        client.cache_clear()
    assert built == [1]


def test_what_is_no_plain_json_names_its_builder(only):
    @only("bad")
    def bad(scope):
        return {"row": scope.workspace}

    with pytest.raises(SnapshotInvalid) as caught:
        SnapshotService().get_or_build(make_workspace().scope_id)
    assert caught.value.details["builder"] == "bad"


def test_over_budget_it_becomes_a_summary_that_says_so():
    whole = {"elements": [{"name": f"element {n}", "text": "x" * 300} for n in range(3_000)], "owner": "ann"}
    cut, is_summary = within_budget(whole, budget=5_000)
    assert is_summary
    assert estimate_tokens(cut) <= 5_000
    assert cut["owner"] == "ann"
    assert cut["elements"]["total"] == 3_000
    assert cut["elements"]["shown"] == len(cut["elements"]["items"]) > 0
    assert cut["summary"]["reason"] == "over_budget"
    assert within_budget({"a": 1}, budget=100) == ({"a": 1}, False)
    tiny, _ = within_budget({f"part{n}": {str(m): "y" * 50 for m in range(200)} for n in range(40)}, budget=300)
    assert len(json.dumps(tiny)) < 3_000
