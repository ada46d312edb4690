"""D1: what goes to the model, what may come back, and what a verdict does to the graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.canonicalize import (
    BATCH_CANDIDATES,
    BATCH_TOKENS,
    apply_verdicts,
    batched,
    containers,
    decide,
    read_answer,
)
from catalog.cleanup import CleanupRules, clean_up
from catalog.errors import CanonicalizeError, EmptyExtraction
from catalog.gather import gather
from catalog.prefilter import prefilter
from catalog.prompts import D1_TONE, snapshot_of
from catalog.types import Candidate, Edge, Graph, Verdict
from llm.testing import ScriptedLLM
from tests.catalog.agents import agent_of, answer, scripted
from tests.catalog.trees import SHOP, write_tree


@pytest.fixture
def shop(tmp_path: Path) -> Graph:
    return prefilter(gather(write_tree(tmp_path, SHOP))).graph


def module(name: str, parent: str = "", summary: str = "") -> Candidate:
    return Candidate(f"module:{name}", "package", name, f"{name}/__init__.py", 1, 1, summary, parent)


def test_the_model_sees_containers_as_five_plain_fields(shop: Graph) -> None:
    llm = scripted()
    verdicts = decide(shop, agent=agent_of(llm))
    shown = json.loads(llm.requests[0].messages[-1].content)
    assert {tuple(c) for c in shown} == {("key", "name", "kind", "path", "summary")}
    assert [c["key"] for c in shown] == list(verdicts)
    assert {c["kind"] for c in shown} <= {"package", "module", "model", "app"}
    assert any(D1_TONE in getattr(block, "text", "") for block in llm.requests[0].system)


def test_a_module_that_holds_and_imports_nothing_is_not_asked_about() -> None:
    empty = Candidate("module:p.empty", "module", "empty", "p/empty.py", 1, 1, parent="module:p")
    assert [c.key for c in containers(Graph((module("p"), empty), ()))] == ["module:p"]


def test_batches_hold_a_bounded_number_of_tokens_and_candidates() -> None:
    many = [module(f"m{n:04}") for n in range(500)]
    long = [module(f"l{n:04}", summary="word " * 200) for n in range(100)]
    batches = list(batched([*many, *long]))
    assert [c for batch in batches for c in batch] == [*many, *long], "in order, none twice"
    assert max(map(len, batches)) == BATCH_CANDIDATES
    assert max(len(snapshot_of(batch)) for batch in batches) <= BATCH_TOKENS * 4
    assert len(batches) < 20


def test_a_candidate_larger_than_a_batch_goes_alone() -> None:
    huge = module("huge", summary="x" * BATCH_TOKENS * 8)
    assert [len(batch) for batch in batched([module("a"), huge, module("b")])] == [1, 1, 1]


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"key": "module:nope", "verdict": "keep"}, "unknown key 'module:nope'"),
        ({"verdict": "keep"}, "unknown key None"),
        ({"key": ["module:a"], "verdict": "keep"}, "unknown key"),
        ({"key": "module:a", "verdict": "delete"}, "unknown verdict 'delete' for module:a"),
        ({"key": "module:a", "verdict": ["keep"]}, "unknown verdict"),
        ({"key": "module:a"}, "unknown verdict None for module:a"),
        ({"key": "module:a", "verdict": "merge"}, "merge of module:a needs another candidate's key in `into`"),
        ({"key": "module:a", "verdict": "merge", "into": "module:a"}, "merge of module:a needs"),
        ({"key": "module:a", "verdict": "merge", "into": 3}, "merge of module:a needs"),
        ({"key": "module:a", "verdict": "rename"}, "rename of module:a needs a `name`"),
        ({"key": "module:a", "verdict": "rename", "name": " \n "}, "rename of module:a needs a `name`"),
        ({"key": "module:a", "verdict": "rename", "name": "n" * 121}, "rename of module:a needs a `name`"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_by_name(item: dict[str, Any], problem: str) -> None:
    with pytest.raises(CanonicalizeError) as raised:
        read_answer([item], [module("a")])
    assert problem in raised.value.details["problems"][0]


def test_what_a_model_adds_of_its_own_has_no_effect() -> None:
    plain = read_answer([{"key": "module:a", "verdict": "keep"}], [module("a")])
    chatty = {
        "key": "module:a",
        "verdict": "keep",
        "reason": "core",
        "into": "module:b",
        "name": "A",
        "confidence": 0.9,
    }
    assert read_answer([chatty], [module("a")]) == plain


def test_a_candidate_left_out_or_decided_twice_is_refused() -> None:
    keep = {"key": "module:a", "verdict": "keep"}
    with pytest.raises(CanonicalizeError) as raised:
        read_answer([keep, keep], [module("a"), module("b")])
    assert raised.value.details["problems"] == ["two verdicts for module:a", "no verdict for module:b"]


@pytest.mark.parametrize(
    ("verdicts", "problem"),
    [
        ({"module:b": {"verdict": "merge", "into": "module:gone"}}, "module:b merges into unknown key 'module:gone'"),
        (
            {"module:a": {"verdict": "reject"}, "module:b": {"verdict": "merge", "into": "module:a"}},
            "module:b merges into module:a, which is not kept (reject)",
        ),
        (
            {
                "module:a": {"verdict": "merge", "into": "module:b"},
                "module:b": {"verdict": "merge", "into": "module:a"},
            },
            "module:a merges into module:b, which is not kept (merge)",
        ),
        (
            {"module:b": {"verdict": "merge", "into": "class:b.C"}},
            "module:b merges into class:b.C, which has another form",
        ),
        ({"module:a": {"verdict": "merge", "into": "module:c"}}, "module:a merges into module:c, which it contains"),
    ],
)
def test_a_merge_into_what_cannot_take_it_is_refused(verdicts: dict[str, Any], problem: str) -> None:
    model = Candidate("class:b.C", "model", "C", "b.py", 1, 2, parent="module:b")
    graph = Graph((module("a"), module("b", parent="module:a"), module("c", parent="module:b"), model), ())
    with pytest.raises(CanonicalizeError) as raised:
        decide(graph, agent=agent_of(scripted(verdicts)))
    assert problem in raised.value.details["problems"]


def test_an_empty_input_never_reaches_the_model() -> None:
    llm = ScriptedLLM(["[]"])
    with pytest.raises(EmptyExtraction):
        decide(Graph((), ()), agent=agent_of(llm))
    assert llm.requests == []


def test_verdicts_that_empty_the_catalogue_are_refused(shop: Graph) -> None:
    with pytest.raises(CanonicalizeError) as raised:
        decide(shop, agent=agent_of(scripted({"module:shop": {"verdict": "reject"}})))
    assert "the verdicts drop 16 of 21 candidates, over 50%" in raised.value.details["problems"]


def test_a_rejected_container_takes_its_content_along(shop: Graph) -> None:
    graph, counts = apply_verdicts(shop, {"module:shop.prices": Verdict("module:shop.prices", "reject")})
    keys = {c.key for c in graph.candidates}
    assert not keys & {"module:shop.prices", "function:shop.prices.price_of"}
    assert not any("shop.prices" in (e.source + e.target) for e in graph.edges)
    assert counts == {"reject": 1}


def test_a_merge_hands_content_and_edges_over(shop: Graph) -> None:
    verdicts = {"module:shop.prices": Verdict("module:shop.prices", "merge", into="module:shop.models")}
    graph, _ = apply_verdicts(shop, verdicts)
    by_key = {c.key: c for c in graph.candidates}
    assert by_key["function:shop.prices.price_of"].parent == "module:shop.models"
    assert by_key["module:shop.models"].attributes["merged"] == ["module:shop.prices"]
    assert Edge("module:shop.views", "imports", "module:shop.models") in graph.edges
    assert all(e.source != e.target for e in graph.edges), "what imported its new self is dropped"


def test_a_rename_changes_the_name_and_never_the_key(shop: Graph) -> None:
    graph, _ = apply_verdicts(shop, {"module:shop": Verdict("module:shop", "rename", name="Bookshop")})
    assert [(c.key, c.name) for c in graph.candidates if c.key == "module:shop"] == [("module:shop", "Bookshop")]


def test_an_unchanged_candidate_is_not_asked_about_again(shop: Graph) -> None:
    first = decide(shop, agent=agent_of(scripted({"module:shop": {"verdict": "rename", "name": "Bookshop"}})))
    silent = ScriptedLLM(["never asked"])
    assert decide(shop, agent=agent_of(silent), known=first) == first
    assert silent.requests == []


def test_only_what_changed_is_asked_about(shop: Graph, tmp_path: Path) -> None:
    first = decide(shop, agent=agent_of(scripted()))
    (tmp_path / "shop" / "prices.py").write_text('"""Now it has a docstring."""\n\ndef price_of(product): ...\n')
    changed = prefilter(gather(tmp_path)).graph
    llm = ScriptedLLM([answer()])
    decide(changed, agent=agent_of(llm), known=first)
    assert [c["key"] for c in json.loads(llm.requests[0].messages[-1].content)] == ["module:shop.prices"]


def test_a_merge_is_asked_about_again_when_its_target_is_gone(shop: Graph) -> None:
    merged = {"module:shop.prices": {"verdict": "merge", "into": "module:manage"}}
    first = decide(shop, agent=agent_of(scripted(merged)))
    without = Graph(tuple(c for c in shop.candidates if not c.key.endswith(("manage", "manage.main"))), ())
    llm = ScriptedLLM([answer()])
    again = decide(without, agent=agent_of(llm), known=first)
    assert again["module:shop.prices"].verdict == "keep"


def test_cleanup_drops_what_is_no_element_and_counts_it(shop: Graph) -> None:
    graph, taken = clean_up(shop, CleanupRules(deny=("module:manage",)))
    keys = {c.key for c in graph.candidates}
    assert "external:decimal" not in keys, "the standard library is no dependency"
    assert "external:django" in keys
    assert "module:manage" not in keys
    assert taken == {"denied": 1, "standard_library": 1}


def test_cleanup_caps_by_use_and_repairs_containers() -> None:
    candidates = (
        module("p"),
        module("p.q", parent="module:p"),
        Candidate("class:p.q.C", "class", "C", "p/q.py", 1, 2, parent="module:p.q"),
        Candidate("external:one", "external", "one", ""),
        Candidate("external:two", "external", "two", ""),
    )
    edges = (
        Edge("module:p", "imports", "external:two"),
        Edge("module:p.q", "imports", "external:one"),
        Edge("module:p.q", "imports", "external:two"),
    )
    graph, taken = clean_up(Graph(candidates, edges), CleanupRules(deny=("module:p.q",), max_externals=1))
    assert {c.key: c.parent for c in graph.candidates} == {
        "module:p": "",
        "class:p.q.C": "module:p",
        "external:two": "",
    }
    assert graph.edges == (Edge("module:p", "imports", "external:two"),)
    assert taken == {"denied": 1, "over_cap": 1}
