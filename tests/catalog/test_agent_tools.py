"""What agents can ask of and do to the catalogue, and that it stays inside their workspace."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from catalog import agent_tools, queries, services
from catalog.agent_snapshot import build
from catalog.errors import AmbiguousElement, InvalidProposal, UnknownElement
from catalog.extract import canonicalize, survey
from catalog.models import ChangeSet, Element, ElementNote
from context.models import ScopeVersion
from context.registry import SnapshotScope
from factory.identities import PLANNER, identity
from prompt.types import AgentIdentity
from tests.catalog.agents import agent_of, scripted
from tests.catalog.trees import SHOP, SHOP_ELEMENTS, write_tree
from tests.support.runs import make_user, make_workspace
from tools.doors import CallResult, call_tool
from tools.executor import ToolExecutor
from tools.registry import registry
from tools.types import ToolContext
from workspaces.models import User, Workspace

pytestmark = pytest.mark.django_db


def load(path: Path, workspace: Workspace, *, label: str = "shop") -> None:
    now = timezone.now()
    extraction = canonicalize(survey(path, label=label), agent=agent_of(scripted()))
    _, change_set = services.propose_changes(
        workspace=workspace, extraction=extraction, correlation_id="c", started_at=now - timedelta(seconds=1), now=now
    )
    assert change_set is not None
    services.apply_changeset(change_set_id=change_set.pk, workspace=workspace, by=None, now=now)


def context_of(workspace: Workspace, user: User | None = None) -> ToolContext:
    return ToolContext(
        user=user or make_user(),
        workspace=workspace,
        identity=AgentIdentity(name="planner", system_tone=""),
        mode="workflow",
        owner_kind="call",
        owner_id=1,
        round=1,
        position=1,
        correlation_id="corr",
        idempotency_key="key",
        now=timezone.now(),
    )


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    workspace = make_workspace()
    load(write_tree(tmp_path, SHOP), workspace)
    return context_of(workspace)


def keys(found: dict[str, Any]) -> list[str]:
    return [element["key"] for element in found["elements"]]


def test_the_catalogues_tools_are_found_with_their_effects() -> None:
    ours = {spec.name: spec for spec in registry() if spec.fn.__module__ == "catalog.agent_tools"}
    assert {name: spec.effect for name, spec in ours.items()} == {
        "annotate_element": "write",
        "catalog_overview": "read",
        "get_element": "read",
        "list_dependencies": "read",
        "propose_changeset": "write",
        "search_elements": "read",
    }
    assert {name for name, spec in ours.items() if spec.chat} == {
        "catalog_overview",
        "list_dependencies",
        "search_elements",
    }
    for spec in ours.values():
        assert "context" not in spec.input_schema["properties"]
        assert all(p.get("description") for p in spec.input_schema["properties"].values()), spec.name


def test_the_closest_element_comes_first(context: ToolContext) -> None:
    assert keys(agent_tools.search_elements(context, "models"))[0] == "module:shop.models"
    assert keys(agent_tools.search_elements(context, "product"))[0] == "class:shop.models.Product"
    assert keys(agent_tools.search_elements(context, "thing for sale")) == ["class:shop.models.Product"]
    assert keys(agent_tools.search_elements(context, "PRICE_OF shop"))[0] == "function:shop.prices.price_of"
    assert keys(agent_tools.search_elements(context, "shop", kind="task")) == ["function:shop.tasks.restock"]
    assert keys(agent_tools.search_elements(context, "100% \\ \x00")) == []


def test_when_nothing_holds_every_word_those_that_hold_some_are_found(context: ToolContext) -> None:
    found = keys(agent_tools.search_elements(context, "Explain the prices module to me please"))
    assert found[0] == "module:shop.prices"


def test_a_cut_list_says_how_many_there_are_in_all(context: ToolContext) -> None:
    found = agent_tools.search_elements(context, "", limit=5)
    assert (len(found["elements"]), found["total"], found["more"]) == (5, SHOP_ELEMENTS, True)
    some = agent_tools.search_elements(context, "models", limit=1)
    assert (len(some["elements"]), some["more"]) == (1, True)
    assert some["total"] == len(agent_tools.search_elements(context, "models")["elements"]) > 1
    leaving = agent_tools.list_dependencies(context, "module:shop", limit=1)
    assert (len(leaving["dependencies"]), leaving["total"], leaving["more"]) == (1, 2, True)
    assert "empty" not in agent_tools.search_elements(context, "no such thing")
    everything = agent_tools.search_elements(context, "", limit=50)
    assert (len(everything["elements"]), everything["more"]) == (SHOP_ELEMENTS, False)


def test_an_element_is_shown_with_its_surroundings(context: ToolContext) -> None:
    agent_tools.annotate_element(context, "module:shop.models", "Ask Kim.")
    found = agent_tools.get_element(context, "module:shop.models")
    assert (found["parent"], found["repository"], found["kind"]) == ("module:shop", "shop", "module")
    assert [e["key"] for e in found["contains"]] == ["class:shop.models.Book", "class:shop.models.Product"]
    assert (found["depends_on"], found["used_by"]) == (1, 2)
    assert [note["text"] for note in found["notes"]] == ["Ask Kim."]
    json.dumps(found)


def test_dependencies_of_a_package_are_those_that_leave_it(context: ToolContext) -> None:
    outgoing = agent_tools.list_dependencies(context, "module:shop")
    assert [(d["key"], d["relation"]) for d in outgoing["dependencies"]] == [
        ("external:django", "imports"),
        ("external:celery", "imports"),
    ]
    incoming = agent_tools.list_dependencies(context, "module:shop", direction="incoming")
    assert [d["key"] for d in incoming["dependencies"]] == ["module:manage"]
    one = agent_tools.list_dependencies(context, "class:shop.models.Product", direction="incoming")
    assert one["dependencies"] == [{"key": "class:shop.models.Book", "relation": "inherits", "times": 1}]


def test_an_unknown_key_comes_back_with_those_that_resemble_it(context: ToolContext) -> None:
    with pytest.raises(UnknownElement) as raised:
        agent_tools.get_element(context, "class:shop.product.Product")
    assert raised.value.details["similar"] == ["class:shop.models.Product"]


def test_another_workspaces_elements_do_not_exist(context: ToolContext) -> None:
    stranger = context_of(make_workspace())
    assert keys(agent_tools.search_elements(stranger, "shop")) == []
    overview = agent_tools.catalog_overview(stranger)
    assert (overview["repositories"], overview["packages"]) == ({}, [])
    for call in (
        lambda: agent_tools.get_element(stranger, "module:shop"),
        lambda: agent_tools.list_dependencies(stranger, "module:shop"),
        lambda: agent_tools.annotate_element(stranger, "module:shop", "mine"),
        lambda: agent_tools.propose_changeset(stranger, "t", "r", remove=["module:shop"]),
    ):
        with pytest.raises(UnknownElement) as raised:
            call()
        assert raised.value.details["similar"] == []
    assert not ElementNote.objects.exists()


def test_a_key_of_two_repositories_asks_which(context: ToolContext, tmp_path: Path) -> None:
    load(write_tree(tmp_path / "other", {"manage.py": "import os\n"}), context.workspace, label="other")
    with pytest.raises(AmbiguousElement) as raised:
        agent_tools.get_element(context, "module:manage")
    assert raised.value.details["repositories"] == ["other", "shop"]
    assert agent_tools.get_element(context, "module:manage", repository="other")["repository"] == "other"


def test_one_proposal_stays_within_one_repository(context: ToolContext, tmp_path: Path) -> None:
    load(write_tree(tmp_path / "other", {"other.py": "import os\n"}), context.workspace, label="other")
    with pytest.raises(InvalidProposal) as raised:
        agent_tools.propose_changeset(context, "t", "r", remove=["module:shop"], rename={"module:other": "x"})
    assert raised.value.details["repositories"] == ["other", "shop"]


def test_a_proposal_waits_for_a_person(context: ToolContext) -> None:
    answer = agent_tools.propose_changeset(
        context, "Drop tasks", "Nobody calls them.", rename={"module:shop": "Bookshop"}, remove=["module:shop.tasks"]
    )
    assert answer == {"change_set": answer["change_set"], "status": "proposed", "add": 0, "update": 1, "delete": 2}
    change_set = ChangeSet.objects.get(pk=answer["change_set"])
    assert (change_set.origin, change_set.created_by, change_set.correlation_id) == ("agent", context.user, "corr")
    assert Element.objects.count() == SHOP_ELEMENTS


def test_the_snapshot_tells_what_there_is_and_is_bounded(context: ToolContext, tmp_path: Path) -> None:
    scope = SnapshotScope(workspace=context.workspace, user=None)
    built = build(scope)
    assert "empty" not in built
    assert built["repositories"][0]["elements"] == SHOP_ELEMENTS
    assert built["packages"][0] == {
        "key": "module:shop",
        "repository": "shop",
        "modules": 9,
        "used_by": 1,
        "uses": 2,
        "summary": "A small shop.",
    }
    assert built["change_sets"][0]["status"] == "applied"
    many = {f"p{n:03}/__init__.py": f"'''{'long ' * 100}'''\nimport p{n // 2:03}\n" for n in range(200)}
    load(write_tree(tmp_path / "many", many), context.workspace, label="many")
    size = len(json.dumps(build(scope)))
    assert size < 20_000
    assert build(scope) == build(scope)


def test_an_empty_catalogue_says_so_and_how_to_fill_it() -> None:
    stranger = context_of(make_workspace())
    command = f"manage.py extract_elements PATH --workspace {stranger.workspace.slug} --apply"
    told = [
        build(SnapshotScope(workspace=stranger.workspace, user=None)),
        agent_tools.search_elements(stranger, "auth"),
        agent_tools.catalog_overview(stranger),
    ]
    for answer in told:
        assert "catalogue of this workspace is empty" in answer["empty"]
        assert command in answer["empty"]


def test_counts_and_leading_packages_of_an_empty_catalogue() -> None:
    workspace = make_workspace()
    assert queries.counts_by_kind(workspace) == {}
    assert queries.leading_packages(workspace, limit=5) == []


@pytest.fixture
def doors(tmp_path: Path, transactional_db: None) -> tuple[ToolContext, Callable[..., CallResult]]:
    """A loaded workspace, and a way to call a tool there as the planner does in a plan."""
    user = make_user()
    workspace = make_workspace(user)
    load(write_tree(tmp_path, SHOP), workspace)

    def call(name: str, /, *, by: User = user, **arguments: Any) -> CallResult:
        return call_tool(
            executor=ToolExecutor(registry(), identity(PLANNER), mode="workflow"),
            user=User.objects.get(pk=by.pk),  # as each request reads it
            workspace=workspace,
            name=name,
            arguments=arguments,
            door="command",
            correlation_id="corr",
            clock=timezone.now,
        )

    return context_of(workspace, user), call


@pytest.mark.django_db(transaction=True)
def test_reads_pass_the_executors_read_only_connection(
    doors: tuple[ToolContext, Callable[..., CallResult]],
) -> None:
    _, call = doors
    for name, arguments in {
        "search_elements": {"query": "shop"},
        "get_element": {"key": "module:shop"},
        "list_dependencies": {"key": "module:shop", "direction": "incoming"},
        "catalog_overview": {},
    }.items():
        envelope = call(name, **arguments).envelope
        assert envelope is not None
        assert envelope["success"], (name, envelope)
    refused = call("search_elements", query="shop", limit=51).envelope
    assert refused is not None
    assert not refused["success"]


@pytest.mark.django_db(transaction=True)
def test_writes_need_their_permission_and_raise_the_snapshots_version(
    doors: tuple[ToolContext, Callable[..., CallResult]],
) -> None:
    context, call = doors
    note = {"key": "module:shop", "note": "Ask Kim."}
    blocked = call("annotate_element", **note)
    assert (blocked.execution is not None and blocked.execution.status) == "blocked"
    assert not ElementNote.objects.exists()
    context.user.user_permissions.set(Permission.objects.filter(codename__in=["change_element", "add_changeset"]))
    version = ScopeVersion.objects.current(context.workspace.pk)
    noted = call("annotate_element", **note)
    stored = ElementNote.objects.get()
    assert noted.envelope == {"success": True, "result": {"note": stored.pk, "key": "module:shop"}, "error": None}
    assert (stored.text, stored.author) == ("Ask Kim.", context.user)
    assert ScopeVersion.objects.current(context.workspace.pk) == version + 1
    proposed = call("propose_changeset", title="Tidy", reason="Why not.", remove=["module:shop.tasks"])
    assert proposed.envelope is not None
    assert proposed.envelope["success"], proposed.envelope
    assert ChangeSet.objects.get(origin="agent").created_by == context.user
    assert call("annotate_element", by=make_user(), **note).execution.status == "blocked", "no member, no call"
