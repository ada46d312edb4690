"""Several people and scans at once: one decision counts, and a graph is always one that somebody proposed."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from django.db import connection
from django.utils import timezone

from catalog import queries, services
from catalog.errors import CatalogError
from catalog.extract import Extraction, canonicalize, survey
from catalog.models import ChangeSet, Element, Relation, Repository
from catalog.types import Candidate, Edge, Graph, states_of
from context.models import ScopeVersion
from tests.catalog.agents import agent_of, scripted
from tests.catalog.trees import SHOP, SHOP_ELEMENTS, write_tree
from tests.support.runs import make_workspace
from workspaces.models import Workspace


def on_own_connections(*calls: Callable[[], object]) -> list[object]:
    """Run the calls at the same moment, each on a connection of its own; results, or the errors they raised."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        try:
            barrier.wait(10)
            return call()
        except CatalogError as exc:
            return exc
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def propose(workspace: Workspace, extraction: Extraction) -> ChangeSet:
    now = timezone.now()
    _, change_set = services.propose_changes(
        workspace=workspace, extraction=extraction, correlation_id="c", started_at=now, now=now
    )
    assert change_set is not None
    return change_set


def apply(change_set: ChangeSet) -> ChangeSet:
    return services.apply_changeset(
        change_set_id=change_set.pk, workspace=change_set.workspace, by=None, now=timezone.now()
    )


def scan(path: Path) -> Extraction:
    return canonicalize(survey(path, label="shop"), agent=agent_of(scripted()))


@pytest.mark.django_db(transaction=True)
def test_a_change_set_that_many_apply_at_once_is_applied_once(tmp_path: Path) -> None:
    change_set = propose(make_workspace(), scan(write_tree(tmp_path, SHOP)))
    results = on_own_connections(*[lambda: apply(change_set)] * 6)
    assert [getattr(r, "code", "applied") for r in results].count("applied") == 1
    assert {getattr(r, "code", "applied") for r in results} == {"applied", "catalog.change_set_closed"}
    assert Element.objects.count() == SHOP_ELEMENTS
    assert Repository.objects.get().revision == ScopeVersion.objects.current(change_set.workspace_id) == 1


@pytest.mark.django_db(transaction=True)
def test_scans_and_decisions_at_once_leave_a_graph_that_one_of_them_proposed(tmp_path: Path) -> None:
    workspace = make_workspace()
    trees = [
        write_tree(tmp_path / str(n), {**SHOP, "shop/orders.py": f"class Order{n}:\n    pass\n"}) for n in range(4)
    ]
    extractions = [scan(tree) for tree in trees]
    apply(propose(workspace, extractions[0]))

    def rescan(extraction: Extraction) -> None:
        apply(propose(workspace, extraction))

    on_own_connections(*[lambda e=extraction: rescan(e) for extraction in extractions[1:]])
    now = queries.states(Repository.objects.get())
    assert now in [states_of(extraction.graph) for extraction in extractions[1:]]


@pytest.mark.django_db(transaction=True)
def test_of_scans_that_end_at_once_one_proposal_stays_open(tmp_path: Path) -> None:
    workspace = make_workspace()
    extraction = replace(scan(write_tree(tmp_path, SHOP)), verdicts={})  # their rows would make the scans take turns
    propose(workspace, extraction)
    on_own_connections(*[lambda: propose(workspace, extraction)] * 6)
    assert ChangeSet.objects.count() == 7
    assert ChangeSet.objects.filter(status="proposed").count() == 1


def random_graph(chance: random.Random) -> Graph:
    """A graph of up to 30 elements whose edges stay inside it."""
    names = sorted(chance.sample(range(40), chance.randint(1, 30)))
    keys = [f"module:m{n}" for n in names]
    candidates = tuple(
        Candidate(
            key,
            chance.choice(["module", "package"]),
            chance.choice(["a", "b"]),
            "p.py",
            chance.randint(1, 3),
            9,
            parent=chance.choice(["", *keys[:index]]),
        )
        for index, key in enumerate(keys)
    )
    edges = {
        Edge(source, chance.choice(["imports", "inherits"]), target)
        for source, target in (chance.sample(keys, 2) for _ in range(40) if len(keys) > 1)
    }
    return Graph(candidates, tuple(sorted(edges)))


@pytest.mark.django_db
def test_any_graph_becomes_any_other_exactly() -> None:
    """Thirty rescans in a row, each of a graph that has little to do with the one before."""
    workspace, chance = make_workspace(), random.Random(2)
    for _ in range(30):
        extraction = Extraction("any", 1, random_graph(chance), {}, {}, (), ())
        now = timezone.now()
        proposal = {
            "workspace": workspace,
            "extraction": extraction,
            "correlation_id": "c",
            "started_at": now,
            "now": now,
        }
        _, change_set = services.propose_changes(**proposal)
        assert change_set is not None
        apply(change_set)
        assert queries.states(Repository.objects.get()) == states_of(extraction.graph)
        assert services.propose_changes(**proposal)[1] is None
    contained = Element.objects.exclude(parent="").count()
    assert Relation.objects.filter(kind="contains").count() == contained
