"""The extraction: gather → D0, then D1 → cleanup. It reads and decides; it writes nothing (SC-02)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalog.canonicalize import apply_verdicts, decide, refuse_empty
from catalog.cleanup import CleanupRules, clean_up
from catalog.errors import ParseFailed, SourceUnusable
from catalog.gather import gather, label_of
from catalog.ports import FieldAgent
from catalog.prefilter import Prefiltered, PrefilterRules, prefilter
from catalog.types import Failure, Gathered, Graph, Verdict

LABEL_CHARS = 200
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the deterministic steps before the model found.

    Args:
        label: the repository's name.
        gathered: the raw scan.
        filtered: what D0 left of it.
    """

    label: str
    gathered: Gathered
    filtered: Prefiltered


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a run found, before anything is compared or written.

    Args:
        label: the repository's name.
        files: Python files looked at.
        graph: what should be in the catalogue.
        verdicts: every container's, earlier ones included.
        counts: by step, what it took or decided and how often.
        ignored: unparsable files that lie in noise.
        skipped: links and special files.
    """

    label: str
    files: int
    graph: Graph
    verdicts: Mapping[str, Verdict]
    counts: Mapping[str, Mapping[str, int]]
    ignored: tuple[Failure, ...]
    skipped: tuple[str, ...]


def survey(
    path: str | Path,
    *,
    label: str = "",
    exclude: Sequence[str] = (),
    progress: Progress = _silent,
    rules: PrefilterRules | None = None,
) -> Survey:
    """Scan a source tree and reject noise; no model, no database.

    Args:
        path: the tree.
        label: the repository's name; empty: the folder's.
        exclude: shell patterns on relative paths.
        progress: told how many files of how many were read.

    Raises:
        SourceUnusable: there is nothing to scan.
        ParseFailed: a file outside noise could not be read or parsed.
        EmptyExtraction: nothing is left for a model (CAP-023).

    Source: SC-02 steps 1 and 2.
    """
    gathered = gather(path, exclude=exclude, progress=progress)
    name = label or label_of(path)
    if len(name) > LABEL_CHARS:
        reason = f"a repository's name has at most {LABEL_CHARS} characters; give one with --label"
        raise SourceUnusable(path=str(path), reason=reason)
    filtered = prefilter(gathered, rules)
    if filtered.failures:
        raise ParseFailed(filtered.failures)
    refuse_empty(filtered.graph)
    return Survey(name, gathered, filtered)


def canonicalize(
    surveyed: Survey,
    *,
    agent: FieldAgent,
    known: Mapping[str, Verdict] | None = None,
    progress: Progress = _silent,
    rules: CleanupRules | None = None,
) -> Extraction:
    """Let the model decide about the containers, and clean up after it.

    Args:
        surveyed: what `survey` found.
        agent: answers D1's batches.
        known: earlier verdicts about this repository; a person's bind.
        progress: told how many batches of how many were answered.

    Raises:
        CanonicalizeError, factory.ExtractError, LLMError: see `decide`.

    Source: SC-02 steps 3 and 4.
    """
    known = known or {}
    before = surveyed.filtered.graph
    verdicts = decide(before, agent=agent, known=known, progress=progress)
    by_person = {key: verdict for key, verdict in known.items() if not verdict.digest}
    canonical, decided = apply_verdicts(before, {**verdicts, **by_person})
    graph, cleaned = clean_up(canonical, rules)
    gathered = surveyed.gathered
    return Extraction(
        label=surveyed.label,
        files=gathered.files,
        graph=graph,
        verdicts=verdicts,
        counts={
            "gathered": {"candidates": len(gathered.candidates), "relations": len(gathered.edges)},
            "prefilter": surveyed.filtered.rejected,
            "verdicts": decided,
            "cleanup": cleaned,
            "kept": {"elements": len(graph.candidates), "relations": len(graph.edges)},
        },
        ignored=surveyed.filtered.ignored,
        skipped=gathered.skipped,
    )
