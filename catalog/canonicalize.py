"""D1, step 3 of the extraction: the model merges, rejects or renames containers; a misfit answer fails the run (SC-02).

Packages, modules and the classes that carry an application go to the model; everything else follows what contains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from catalog.errors import CanonicalizeError, EmptyExtraction
from catalog.parse import one_line
from catalog.ports import FieldAgent
from catalog.prompts import payload_of, snapshot_of
from catalog.types import Candidate, Edge, Graph, Verdict, VerdictName
from tools.values import digest

BATCH_TOKENS = 6_000
BATCH_CANDIDATES = 80  # the answer must fit the field tier's 8,000 output tokens (CAP-122)
NAME_CHARS = 120
LARGE_CLASS_METHODS = 12
MAX_DROPPED_SHARE = 0.5
SMALL_GRAPH = 10  # below it a share says nothing
CONTAINER_KINDS = frozenset({"package", "module", "model", "app"})


def containers(graph: Graph) -> list[Candidate]:
    """The candidates that are worth a model's time.

    Packages; modules that hold or import something; models, apps and large classes.
    """
    holding = {c.parent for c in graph.candidates} | {e.source for e in graph.edges} | {e.target for e in graph.edges}
    return [c for c in graph.candidates if _is_container(c) and (c.kind != "module" or c.key in holding)]


def _is_container(candidate: Candidate) -> bool:
    return candidate.kind in CONTAINER_KINDS or candidate.attributes.get("methods", 0) >= LARGE_CLASS_METHODS


def refuse_empty(graph: Graph) -> None:
    """Validate before the model is called.

    Raises:
        EmptyExtraction: there is no candidate to ask about.

    Source: CAP-023.
    """
    if not graph.candidates:
        raise EmptyExtraction(hint="every candidate was rejected by rule; check --exclude")


def candidate_digest(candidate: Candidate) -> str:
    """Of what the model is shown; a verdict holds as long as this does."""
    return digest(payload_of(candidate))


def decide(
    graph: Graph,
    *,
    agent: FieldAgent,
    known: Mapping[str, Verdict] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Verdict]:
    """One verdict per container.

    Args:
        graph: what D0 kept.
        agent: asked about the containers that `known` does not settle.
        known: earlier verdicts by key; one is used while its candidate looks the same, so that an unchanged tree asks
            nothing and changes nothing.
        progress: told how many batches of how many were answered.

    Raises:
        EmptyExtraction: no candidate at all; the model was not called (CAP-023).
        CanonicalizeError: the answer names a key or verdict that does not exist, leaves a candidate out, decides one
            twice, merges into something that is not kept, or drops more than half of all there is.
        factory.ExtractError: the answer was no JSON array (CAP-009).

    Source: SC-02 step 3, PRF-SC02-04.
    """
    refuse_empty(graph)
    asked = containers(graph)
    verdicts = _still_valid(asked, known or {})
    batches = list(batched([c for c in asked if c.key not in verdicts]))
    if batches:
        progress(0, len(batches))
    for done, batch in enumerate(batches, start=1):
        verdicts.update(read_answer(agent.extract_candidates(snapshot_of(batch)), batch))
        progress(done, len(batches))
    _check_merges(verdicts, {c.key: c.parent for c in graph.candidates})
    if batches:
        _check_share(graph, verdicts)
    return verdicts


def _still_valid(asked: Sequence[Candidate], known: Mapping[str, Verdict]) -> dict[str, Verdict]:
    valid = {c.key: known[c.key] for c in asked if c.key in known and known[c.key].digest in ("", candidate_digest(c))}
    here = {c.key for c in asked}
    return {key: v for key, v in valid.items() if v.verdict != "merge" or v.into in here}


def batched(candidates: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    """Groups of at most about 6,000 tokens (four characters each) and 80 candidates, in order."""
    batch: list[Candidate] = []
    size = 0
    for candidate in candidates:
        tokens = len(snapshot_of([candidate])) // 4 + 1
        if batch and (size + tokens > BATCH_TOKENS or len(batch) == BATCH_CANDIDATES):
            yield batch
            batch, size = [], 0
        batch.append(candidate)
        size += tokens
    if batch:
        yield batch


def read_answer(items: Sequence[Mapping[str, Any]], batch: Sequence[Candidate]) -> dict[str, Verdict]:
    """The model's array as verdicts.

    Args:
        items: objects of `{key, verdict, into?, name?}`; what else a model adds, such as a reason, has no effect.
        batch: what was asked.

    Raises:
        CanonicalizeError: see `decide`; `problems` names each.
    """
    by_key = {c.key: c for c in batch}
    problems: list[str] = []
    verdicts: dict[str, Verdict] = {}
    for item in items:
        problem = _problem(item, by_key, verdicts)
        if problem:
            problems.append(problem)
            continue
        key = item["key"]
        verdict = cast(VerdictName, item["verdict"])
        verdicts[key] = Verdict(
            key=key,
            verdict=verdict,
            into=item["into"] if verdict == "merge" else "",
            name=one_line(item["name"]) if verdict == "rename" else "",
            digest=candidate_digest(by_key[key]),
        )
    problems += [f"no verdict for {key}" for key in by_key if key not in verdicts and not _mentioned(key, items)]
    if problems:
        raise CanonicalizeError(problems=problems[:20], count=len(problems), asked=len(batch), answered=len(items))
    return verdicts


def _mentioned(key: str, items: Sequence[Mapping[str, Any]]) -> bool:
    return any(item.get("key") == key for item in items)


def _problem(item: Mapping[str, Any], by_key: Mapping[str, Candidate], seen: Mapping[str, Verdict]) -> str:
    key, verdict = item.get("key"), item.get("verdict")
    if not isinstance(key, str) or key not in by_key:
        return f"unknown key {key!r:.120}"
    if key in seen:
        return f"two verdicts for {key}"
    if verdict not in get_args(VerdictName):
        return f"unknown verdict {verdict!r:.40} for {key}"
    if verdict == "merge" and not (isinstance(item.get("into"), str) and item["into"] not in ("", key)):
        return f"merge of {key} needs another candidate's key in `into`"
    if verdict == "rename":
        name = item.get("name")
        if not isinstance(name, str) or not 0 < len(one_line(name)) <= NAME_CHARS:
            return f"rename of {key} needs a `name` of 1 to {NAME_CHARS} characters"
    return ""


def _check_merges(verdicts: Mapping[str, Verdict], parents: Mapping[str, str]) -> None:
    """Refuse a merge whose target is no candidate, of another form, not kept, or inside what is merged."""
    problems = []
    for verdict in verdicts.values():
        if verdict.verdict != "merge":
            continue
        target = verdicts.get(verdict.into)
        if target is None:
            problems.append(f"{verdict.key} merges into unknown key {verdict.into!r:.120}")
        elif target.verdict in ("merge", "reject"):
            problems.append(f"{verdict.key} merges into {target.key}, which is not kept ({target.verdict})")
        elif target.key.partition(":")[0] != verdict.key.partition(":")[0]:
            problems.append(f"{verdict.key} merges into {target.key}, which has another form")
        elif verdict.key in _containers_of(target.key, parents):
            problems.append(f"{verdict.key} merges into {target.key}, which it contains")
    if problems:
        raise CanonicalizeError(problems=problems[:20], count=len(problems))


def _check_share(graph: Graph, verdicts: Mapping[str, Verdict]) -> None:
    """Refuse verdicts that empty the catalogue: the noise is gone by now, and a docstring may ask for it."""
    kept, _ = apply_verdicts(graph, {key: v for key, v in verdicts.items() if v.digest})
    dropped = len(graph.candidates) - len(kept.candidates)
    if len(graph.candidates) >= SMALL_GRAPH and dropped > len(graph.candidates) * MAX_DROPPED_SHARE:
        problem = f"the verdicts drop {dropped} of {len(graph.candidates)} candidates, over {MAX_DROPPED_SHARE:.0%}"
        raise CanonicalizeError(problems=[problem], count=1)


def _containers_of(key: str, parents: Mapping[str, str]) -> set[str]:
    found: set[str] = set()
    while (key := parents.get(key, "")) and key not in found:
        found.add(key)
    return found


def apply_verdicts(graph: Graph, verdicts: Mapping[str, Verdict]) -> tuple[Graph, dict[str, int]]:
    """The graph after the verdicts, and how often each was given.

    A rejected candidate takes what it contains with it. A merged one hands its children and edges to its target.

    Args:
        graph: what D0 kept.
        verdicts: by key; a candidate without one is kept unless its container goes.
    """
    by_key = {c.key: c for c in graph.candidates}
    into = {v.key: v.into for v in verdicts.values() if v.verdict == "merge" and v.key in by_key}
    gone = _rejected(graph, verdicts, into)
    merged_into: dict[str, list[str]] = {}
    for source, target in sorted(into.items()):
        merged_into.setdefault(target, []).append(source)
    kept: list[Candidate] = []
    for candidate in graph.candidates:
        if candidate.key in gone or candidate.key in into:
            continue
        verdict = verdicts.get(candidate.key)
        name = verdict.name if verdict and verdict.verdict == "rename" else candidate.name
        parent = _follow(candidate.parent, into)
        attributes = dict(candidate.attributes)
        if candidate.key in merged_into:
            attributes["merged"] = merged_into[candidate.key]
        kept.append(
            replace(candidate, name=name, parent="" if parent == candidate.key else parent, attributes=attributes)
        )
    keys = {c.key for c in kept}
    moved = (replace(e, source=_follow(e.source, into), target=_follow(e.target, into)) for e in graph.edges)
    edges: set[Edge] = {e for e in moved if e.source in keys and e.target in keys and e.source != e.target}
    counts = Counter(v.verdict for v in verdicts.values())
    return Graph(tuple(kept), tuple(sorted(edges))), {str(name): n for name, n in sorted(counts.items())}


def _follow(key: str, into: Mapping[str, str]) -> str:
    return into.get(key, key)


def _rejected(graph: Graph, verdicts: Mapping[str, Verdict], into: Mapping[str, str]) -> set[str]:
    """Rejected keys and all that lies below them; what a merge moved lies below its target."""
    children: dict[str, list[str]] = {}
    for candidate in graph.candidates:
        children.setdefault(_follow(candidate.parent, into), []).append(candidate.key)
    pending = [v.key for v in verdicts.values() if v.verdict == "reject"]
    gone: set[str] = set()
    while pending:
        key = pending.pop()
        if key and key not in gone:
            gone.add(key)
            pending.extend(children.get(key, ()))
    return gone
