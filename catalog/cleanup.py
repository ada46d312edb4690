"""Step 4 of the extraction: deterministic rules after the model (SC-02)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from catalog.types import Candidate, Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRules:
    """What may stay in the catalogue.

    Args:
        deny: shell patterns on keys.
        max_externals: keep the externals that most modules import.
        max_per_kind: at most so many elements of a kind; of classes and functions those that lie highest, in key order.
    """

    deny: tuple[str, ...] = ("external:__future__", "external:pkg_resources", "module:*.__main__")
    max_externals: int = 200
    max_per_kind: Mapping[str, int] = field(default_factory=lambda: {"function": 20_000, "class": 20_000})


def clean_up(graph: Graph, rules: CleanupRules | None = None) -> tuple[Graph, dict[str, int]]:
    """Drop the standard library, denied keys, unused externals and what is over a cap; repair parents and edges.

    Args:
        graph: after D1.
        rules: the defaults when None.

    Returns:
        The graph, and how many candidates each rule took.

    Source: SC-02 step 4.
    """
    rules = rules or CleanupRules()
    taken: Counter[str] = Counter()
    importers = Counter(edge.target for edge in graph.edges if edge.kind == "imports")
    kept: list[Candidate] = []
    for candidate in graph.candidates:
        reason = _reason(candidate, rules, importers)
        if reason:
            taken[reason] += 1
        else:
            kept.append(candidate)
    kept = _capped(kept, rules, importers, taken)
    keys = {c.key for c in kept}
    parents = {c.key: c.parent for c in graph.candidates}
    kept = [replace(c, parent=_nearest(c.parent, keys, parents)) for c in kept]
    edges = tuple(e for e in graph.edges if e.source in keys and e.target in keys)
    return Graph(tuple(kept), edges), dict(sorted(taken.items()))


def _reason(candidate: Candidate, rules: CleanupRules, importers: Counter[str]) -> str:
    if any(fnmatchcase(candidate.key, pattern) for pattern in rules.deny):
        return "denied"
    if candidate.kind != "external":
        return ""
    if candidate.name in sys.stdlib_module_names:
        return "standard_library"
    return "" if importers[candidate.key] else "unused_external"


def _capped(
    candidates: list[Candidate], rules: CleanupRules, importers: Counter[str], taken: Counter[str]
) -> list[Candidate]:
    over: set[str] = set()
    caps = {**rules.max_per_kind, "external": rules.max_externals}
    for kind, cap in caps.items():
        of_kind = [c for c in candidates if c.kind == kind]
        ranked = sorted(of_kind, key=lambda c: (-importers[c.key], c.key.count("."), c.key))
        over.update(c.key for c in ranked[cap:])
    if over:
        taken["over_cap"] += len(over)
    return [c for c in candidates if c.key not in over]


def _nearest(parent: str, keys: set[str], parents: Mapping[str, str]) -> str:
    """The closest container that was kept."""
    seen: set[str] = set()
    while parent and parent not in keys and parent not in seen:
        seen.add(parent)
        parent = parents.get(parent, "")
    return parent if parent in keys else ""
