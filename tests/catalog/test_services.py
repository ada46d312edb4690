"""Change sets: what a scan proposes, what applying writes, and that a graph is never half old, half new."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import queries, services
from catalog.errors import ChangeSetClosed, InvalidProposal, StaleChangeSet, UnknownElement
from catalog.extract import Extraction, canonicalize, survey
from catalog.models import ChangeOp, ChangeSet, Element, Relation, Repository, Scan
from catalog.services import Edit
from catalog.types import states_of
from context.models import ScopeVersion
from llm.testing import ScriptedLLM
from tests.catalog.agents import Verdicts, agent_of, scripted
from tests.catalog.trees import SHOP, SHOP_ELEMENTS, write_tree
from tests.support.runs import make_user, make_workspace
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db


def scan(path: Path, workspace: Workspace, verdicts: Verdicts | None = None, *, label: str = "shop") -> Extraction:
    known = queries.known_verdicts(workspace, label)
    return canonicalize(survey(path, label=label), agent=agent_of(scripted(verdicts)), known=known)


def propose(workspace: Workspace, extraction: Extraction) -> ChangeSet | None:
    now = timezone.now()
    _, change_set = services.propose_changes(
        workspace=workspace, extraction=extraction, correlation_id="c", started_at=now - timedelta(seconds=1), now=now
    )
    return change_set


def apply(change_set: ChangeSet) -> ChangeSet:
    return services.apply_changeset(
        change_set_id=change_set.pk, workspace=change_set.workspace, by=None, now=timezone.now()
    )


def load(path: Path, workspace: Workspace, verdicts: Verdicts | None = None, *, label: str = "shop") -> Extraction:
    """Scan and apply."""
    extraction = scan(path, workspace, verdicts, label=label)
    change_set = propose(workspace, extraction)
    if change_set:
        apply(change_set)
    return extraction


def stored(workspace: Workspace) -> dict[str, Any]:
    return {
        repository.label: queries.states(repository)
        for repository in Repository.objects.for_workspace(workspace).order_by("label")
    }


def test_a_proposal_changes_nothing_until_it_is_applied(tmp_path: Path) -> None:
    workspace = make_workspace()
    extraction = scan(write_tree(tmp_path, SHOP), workspace)
    change_set = propose(workspace, extraction)
    assert change_set is not None
    assert (change_set.status, change_set.added, change_set.updated, change_set.deleted) == (
        "proposed",
        SHOP_ELEMENTS,
        0,
        0,
    )
    assert not Element.objects.exists()
    apply(change_set)
    assert stored(workspace) == {"shop": states_of(extraction.graph)}


def test_contains_relations_follow_the_containers(tmp_path: Path) -> None:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    pairs = set(Relation.objects.filter(kind="contains").values_list("source__key", "target__key"))
    assert pairs == {(e.parent, e.key) for e in Element.objects.exclude(parent="")}
    assert ("module:shop.models", "class:shop.models.Product") in pairs


def test_a_second_scan_of_the_same_tree_proposes_nothing_and_asks_nobody(tmp_path: Path) -> None:
    workspace = make_workspace()
    verdicts = {
        "module:shop": {"verdict": "rename", "name": "Bookshop"},
        "module:shop.apps": {"verdict": "reject"},
        "module:shop.prices": {"verdict": "merge", "into": "module:shop.models"},
    }
    load(write_tree(tmp_path, SHOP), workspace, verdicts)
    silent = ScriptedLLM(["never asked"])
    known = queries.known_verdicts(workspace, "shop")
    again = canonicalize(survey(tmp_path, label="shop"), agent=agent_of(silent), known=known)
    assert propose(workspace, again) is None
    assert silent.requests == []
    assert Scan.objects.count() == 2, "that it was looked at is on record"


def test_a_changed_tree_becomes_exactly_its_difference(tmp_path: Path) -> None:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    (tmp_path / "shop" / "tasks.py").unlink()
    write_tree(tmp_path, {"shop/orders.py": "from shop import models\n", "manage.py": "def main():\n    pass\n"})
    extraction = scan(tmp_path, workspace)
    change_set = propose(workspace, extraction)
    assert change_set is not None
    ops = list(change_set.ops.values_list("op", "key"))
    assert ops == [
        ("delete", "external:celery"),
        ("delete", "function:shop.tasks.restock"),
        ("delete", "module:shop.tasks"),
        ("update", "function:manage.main"),
        ("update", "module:manage"),
        ("add", "module:shop.orders"),
    ]
    assert change_set.ops.get(key="module:manage").before["imports"] == ["module:shop.models"]
    apply(change_set)
    assert stored(workspace) == {"shop": states_of(extraction.graph)}


def test_a_key_that_is_deleted_and_added_is_replaced_deletes_first(tmp_path: Path) -> None:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    repository = Repository.objects.get()
    key = "module:shop.models"
    before = queries.states(repository, [key])[key].to_json()
    after = {**before, "name": "things"}
    change_set = ChangeSet.objects.create(
        workspace=workspace,
        repository=repository,
        origin="scan",
        title="t",
        correlation_id="c",
        created_at=timezone.now(),
    )
    ChangeOp.objects.create(change_set=change_set, seq=1, op="add", key=key, after=after)
    ChangeOp.objects.create(change_set=change_set, seq=2, op="delete", key=key, before=before)
    incoming = set(Relation.objects.filter(target__key=key).values_list("source__key", "kind"))
    apply(change_set)
    assert Element.objects.get(key=key).name == "things"
    assert set(Relation.objects.filter(target__key=key).values_list("source__key", "kind")) == incoming


def test_a_failure_in_the_middle_leaves_the_old_graph_whole(tmp_path: Path) -> None:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    before, version = stored(workspace), ScopeVersion.objects.current(workspace.pk)
    write_tree(tmp_path, {"shop/orders.py": "import shop\n", "shop/prices.py": ""})
    change_set = propose(workspace, scan(tmp_path, workspace))
    assert change_set is not None
    op = change_set.ops.get(key="module:shop.orders")
    op.after = {**op.after, "imports": ["module:shop.nowhere"]}  # its last step will fail
    op.save()
    with pytest.raises(StaleChangeSet) as raised, transaction.atomic():
        apply(change_set)
    assert raised.value.details["missing"] == ["module:shop.nowhere"]
    change_set.refresh_from_db()
    assert (stored(workspace), change_set.status) == (before, "proposed")
    assert ScopeVersion.objects.current(workspace.pk) == version


def test_a_change_set_is_refused_once_the_catalogue_has_moved_on(tmp_path: Path) -> None:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    early = services.propose_edits(
        workspace=workspace,
        edits=[Edit("rename", "module:shop.views", "Pages")],
        title="t",
        reason="r",
        correlation_id="c",
        created_by=None,
        now=timezone.now(),
    )
    write_tree(tmp_path, {"shop/views.py": '"""Pages."""\n'})
    load(tmp_path, workspace)
    with pytest.raises(StaleChangeSet) as raised, transaction.atomic():
        apply(early)
    assert raised.value.details["changed"] == ["module:shop.views"]


@pytest.mark.parametrize("key", ["class:shop.models.Product", "module:shop.tasks"], ids=["inherited", "container"])
def test_a_delete_that_would_leave_others_pointing_at_nothing_is_refused(tmp_path: Path, key: str) -> None:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    repository = Repository.objects.get()
    change_set = ChangeSet.objects.create(
        workspace=workspace,
        repository=repository,
        origin="agent",
        title="t",
        correlation_id="c",
        created_at=timezone.now(),
    )
    before = queries.states(repository, [key])[key].to_json()
    ChangeOp.objects.create(change_set=change_set, seq=1, op="delete", key=key, before=before)
    with pytest.raises(StaleChangeSet) as raised, transaction.atomic():
        apply(change_set)
    assert raised.value.details["left_dangling"] == [
        {"class:shop.models.Product": "class:shop.models.Book", "module:shop.tasks": "function:shop.tasks.restock"}[key]
    ]


def test_a_newer_scan_takes_the_place_of_an_undecided_one(tmp_path: Path) -> None:
    workspace = make_workspace()
    first = propose(workspace, scan(write_tree(tmp_path, SHOP), workspace))
    second = propose(workspace, scan(tmp_path, workspace))
    assert first is not None
    assert second is not None
    first.refresh_from_db()
    assert (first.status, first.decision_note) == ("rejected", "A newer scan took its place.")
    with pytest.raises(ChangeSetClosed):
        apply(first)
    apply(second)


def test_a_change_set_is_decided_once(tmp_path: Path) -> None:
    workspace, person = make_workspace(), make_user()
    change_set = propose(workspace, scan(write_tree(tmp_path, SHOP), workspace))
    assert change_set is not None
    decide = {"change_set_id": change_set.pk, "by": person, "now": timezone.now()}
    with pytest.raises(ChangeSetClosed):
        services.apply_changeset(workspace=make_workspace(), **decide)
    rejected = services.reject_changeset(workspace=workspace, note="Not now.", **decide)
    assert (rejected.status, rejected.decided_by, rejected.decision_note) == ("rejected", person, "Not now.")
    for service, extra in ((services.apply_changeset, {}), (services.reject_changeset, {"note": ""})):
        with pytest.raises(ChangeSetClosed):
            service(workspace=workspace, **decide, **extra)
    assert not Element.objects.exists()


def test_applying_raises_the_snapshot_version_once(tmp_path: Path) -> None:
    workspace = make_workspace()
    change_set = propose(workspace, scan(write_tree(tmp_path, SHOP), workspace))
    assert change_set is not None
    assert ScopeVersion.objects.current(workspace.pk) == 0
    apply(change_set)
    assert ScopeVersion.objects.current(workspace.pk) == 1


def test_two_repositories_and_two_workspaces_keep_out_of_each_others_way(tmp_path: Path) -> None:
    ours, theirs = make_workspace(), make_workspace()
    write_tree(tmp_path / "a", SHOP)
    write_tree(tmp_path / "b", {"manage.py": "import celery\n", "lib/__init__.py": ""})
    load(tmp_path / "a", ours, label="a")
    load(tmp_path / "b", ours, label="b")
    load(tmp_path / "a", theirs, label="a")
    before = stored(ours)
    assert (len(before["a"]), len(before["b"])) == (SHOP_ELEMENTS, 3)
    load(write_tree(tmp_path / "b", {"manage.py": ""}), theirs, label="a")
    assert stored(ours) == before


def test_a_persons_decisions_outlast_every_rescan(tmp_path: Path) -> None:
    workspace, person = make_workspace(), make_user()
    load(write_tree(tmp_path, SHOP), workspace)
    change_set = services.propose_edits(
        workspace=workspace,
        edits=[Edit("rename", "class:shop.models.Book", "Volume"), Edit("remove", "module:shop.prices")],
        title="Tidy up",
        reason="Prices are computed elsewhere.",
        correlation_id="c",
        created_by=person,
        now=timezone.now(),
    )
    assert list(change_set.ops.values_list("op", "key")) == [
        ("delete", "function:shop.prices.price_of"),
        ("delete", "module:shop.prices"),
        ("update", "class:shop.models.Book"),
        ("update", "module:shop.views"),
    ]
    apply(change_set)
    write_tree(tmp_path, {"shop/prices.py": '"""Changed."""\nfrom shop.models import Product\n'})
    load(tmp_path, workspace)
    assert not Element.objects.filter(key__contains="shop.prices").exists()
    assert Element.objects.get(key="class:shop.models.Book").name == "Volume"


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        ([], InvalidProposal),
        ([Edit("rename", "module:shop", " ")], InvalidProposal),
        ([Edit("rename", "module:shop", "x" * 121)], InvalidProposal),
        ([Edit("rename", "module:shop", "shop")], InvalidProposal),
        ([Edit("remove", "module:shop")] * 101, InvalidProposal),
        ([Edit("rename", "module:shop", "x"), Edit("remove", "module:shop")], InvalidProposal),
        ([Edit("remove", "module:elsewhere")], UnknownElement),
    ],
    ids=["none", "blank", "long", "same", "many", "twice", "unknown"],
)
def test_a_proposal_without_sense_is_refused(tmp_path: Path, edits: list[Edit], error: type[Exception]) -> None:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    with pytest.raises(error):
        services.propose_edits(
            workspace=workspace,
            edits=edits,
            title="t",
            reason="",
            correlation_id="c",
            created_by=None,
            now=timezone.now(),
        )
    assert ChangeSet.objects.count() == 1


def test_a_note_is_kept_when_its_element_goes_and_comes_back(tmp_path: Path) -> None:
    workspace, person = make_workspace(), make_user()
    load(write_tree(tmp_path, SHOP), workspace)
    services.annotate(element=Element.objects.get(key="module:shop.tasks"), text=" Slow. ", author=person)
    (tmp_path / "shop" / "tasks.py").unlink()
    load(tmp_path, workspace)
    load(write_tree(tmp_path, SHOP), workspace)
    assert [n.text for n in queries.notes(Element.objects.get(key="module:shop.tasks"))] == ["Slow."]
    for text in ("", "   ", "x" * 4_001):
        with pytest.raises(InvalidProposal):
            services.annotate(element=Element.objects.get(key="module:shop"), text=text, author=person)


def test_the_number_of_queries_does_not_grow_with_the_tree(tmp_path: Path) -> None:
    counts = []
    for size in (20, 200):
        workspace = make_workspace()
        files = {f"p/m{n}.py": f"import p.m{n // 2}\nclass C{n}:\n    pass\n" for n in range(size)}
        tree = write_tree(tmp_path / str(size), {"p/__init__.py": "", **files})
        extraction = scan(tree, workspace)
        with CaptureQueriesContext(connection) as queries_made:
            change_set = propose(workspace, extraction)
            assert change_set is not None
            apply(change_set)
        counts.append(len(queries_made))
    assert counts[0] == counts[1] > 10


def test_the_database_refuses_an_op_without_its_sides_and_a_decided_set_without_a_date(tmp_path: Path) -> None:
    workspace = make_workspace()
    change_set = propose(workspace, scan(write_tree(tmp_path, SHOP), workspace))
    assert change_set is not None
    with pytest.raises(IntegrityError), transaction.atomic():
        ChangeOp.objects.create(change_set=change_set, seq=999, op="delete", key="k", after={})
    with pytest.raises(IntegrityError), transaction.atomic():
        ChangeSet.objects.filter(pk=change_set.pk).update(status="applied")
