"""D0, step 2 of the extraction: reject noise by rule and merge duplicates, the same way each time (SC-02)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from catalog.types import KEY_CHARS, Candidate, Failure, Gathered, Graph

# A folder of this name, anywhere in the path. `test` and `testing` are not here: packages ship under these names.
NOISE_FOLDERS: Mapping[str, str] = {
    "tests": "test",
    "unittests": "test",
    "testdata": "test",
    "fixtures": "fixture",
    "migrations": "migration",
    "vendor": "vendored",
    "vendored": "vendored",
    "_vendor": "vendored",
    "third_party": "vendored",
    "thirdparty": "vendored",
    "extern": "vendored",
    "locale": "data",
    "build": "generated",
    "dist": "generated",
}
NOISE_FILES: Sequence[tuple[str, str]] = (
    ("test_*.py", "test"),
    ("*_test.py", "test"),
    ("tests.py", "test"),
    ("conftest.py", "test"),
    ("*_pb2.py", "generated"),
    ("*_pb2_grpc.py", "generated"),
)
_PRIVATE = re.compile(r"_[^_]|__.*[^_]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefilterRules:
    """What D0 rejects beyond its fixed path rules.

    Args:
        exclude: shell patterns on relative paths.
        drop_private: reject top-level classes and functions whose name starts with an underscore.
        max_per_module: at most so many definitions of one module, in source order.
        max_candidates: at most so many in all, packages and modules first.
    """

    exclude: tuple[str, ...] = ()
    drop_private: bool = True
    max_per_module: int = 500
    max_candidates: int = 50_000


@dataclass(frozen=True, slots=True)
class Prefiltered:
    """What is left, and why the rest is not.

    Args:
        graph: distinct keys, sorted by path and line, and the edges between them.
        rejected: how many candidates each rule took.
        failures: unreadable files that no path rule rejects; they fail the run.
        ignored: unreadable files that lie in noise, as deliberately broken test data does.
    """

    graph: Graph
    rejected: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    ignored: tuple[Failure, ...] = ()


def prefilter(gathered: Gathered, rules: PrefilterRules | None = None) -> Prefiltered:
    """Reject noise and merge what has one natural key.

    Args:
        gathered: a scan, in any order.
        rules: the defaults when None.

    Source: SC-02 step 2, PRF-SC02-03.
    """
    rules = rules or PrefilterRules()
    rejected: Counter[str] = Counter()
    merged: dict[str, Candidate] = {}
    for candidate in sorted(gathered.candidates, key=_order):
        reason = _reject_reason(candidate, rules)
        if reason:
            rejected[reason] += 1
        elif candidate.key in merged:
            rejected["duplicate"] += 1
            merged[candidate.key] = _merge(merged[candidate.key], candidate)
        else:
            merged[candidate.key] = candidate
    kept = _capped(list(merged.values()), rules, rejected)
    keys = {candidate.key for candidate in kept}
    noise = [f for f in gathered.failures if path_reason(f.path, rules.exclude)]
    return Prefiltered(
        graph=Graph(
            candidates=tuple(replace(c, parent=c.parent if c.parent in keys else "") for c in kept),
            edges=tuple(sorted({e for e in gathered.edges if e.source in keys and e.target in keys})),
        ),
        rejected=dict(sorted(rejected.items())),
        failures=tuple(f for f in gathered.failures if f not in noise),
        ignored=tuple(noise),
    )


def path_reason(path: str, exclude: Sequence[str] = ()) -> str:
    """The rule that rejects this path, or an empty string.

    Args:
        path: relative POSIX path of a file or folder.
        exclude: further shell patterns.
    """
    folders, _, file = path.rpartition("/")
    parts = folders.split("/")
    for index, folder in enumerate(parts):
        if folder == "versions" and index and parts[index - 1] == "alembic":
            return "migration"
        if folder in NOISE_FOLDERS:
            return NOISE_FOLDERS[folder]
    for pattern, reason in NOISE_FILES:
        if fnmatchcase(file, pattern):
            return reason
    return "excluded" if any(fnmatchcase(path, pattern) for pattern in exclude) else ""


def _reject_reason(candidate: Candidate, rules: PrefilterRules) -> str:
    by_path = path_reason(candidate.path, rules.exclude) if candidate.path else ""
    if by_path:
        return by_path
    if candidate.generated:
        return "generated"
    if len(candidate.key) > KEY_CHARS:
        return "key_too_long"
    is_definition = candidate.key.startswith(("class:", "function:"))
    return "private" if rules.drop_private and is_definition and _PRIVATE.match(candidate.name) else ""


def _order(candidate: Candidate) -> tuple[str, int, int, str]:
    return candidate.path, candidate.line, -candidate.end_line, candidate.key


def _merge(first: Candidate, again: Candidate) -> Candidate:
    """The first definition, with the lines of the others and what it lacks."""
    lines = [*first.attributes.get("also_at", ()), again.line]
    return replace(
        first, summary=first.summary or again.summary, attributes={**first.attributes, "also_at": sorted(set(lines))}
    )


def _capped(candidates: list[Candidate], rules: PrefilterRules, rejected: Counter[str]) -> list[Candidate]:
    of_module: Counter[str] = Counter()
    within: list[Candidate] = []
    for candidate in candidates:
        if candidate.key.startswith(("class:", "function:")):
            of_module[candidate.parent] += 1
            if of_module[candidate.parent] > rules.max_per_module:
                rejected["over_module_cap"] += 1
                continue
        within.append(candidate)
    if len(within) <= rules.max_candidates:
        return within
    rejected["over_cap"] += len(within) - rules.max_candidates
    first = sorted(within, key=lambda c: (not c.key.startswith("module:"), _order(c)))[: rules.max_candidates]
    return sorted(first, key=_order)
