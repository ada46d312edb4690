"""The extraction as one call: gather → D0 → D1 → cleanup. It reads and decides; it writes nothing (SC-02)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalog.canonicalize import apply_verdicts, decide
from catalog.cleanup import CleanupRules, clean_up
from catalog.errors import ParseFailed
from catalog.gather import gather
from catalog.ports import FieldAgent
from catalog.prefilter import PrefilterRules, prefilter
from catalog.types import Failure, Graph, Verdict

Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


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


def extract(
    path: str | Path,
    *,
    agent: FieldAgent,
    label: str = "",
    exclude: Sequence[str] = (),
    known: Callable[[str], Mapping[str, Verdict]] = lambda label: {},
    on_files: Progress = _silent,
    on_batches: Progress = _silent,
    prefilter_rules: PrefilterRules | None = None,
    cleanup_rules: CleanupRules | None = None,
) -> Extraction:
    """Run the four deterministic and model steps over a source tree.

    Args:
        path: the tree.
        agent: answers D1's batches.
        label: the repository's name; empty: the folder's.
        exclude: shell patterns on relative paths.
        known: earlier verdicts of the repository with this label.
        on_files, on_batches: told the progress.

    Raises:
        SourceUnusable: there is nothing to scan.
        ParseFailed: a file outside noise could not be read or parsed.
        EmptyExtraction, CanonicalizeError, factory.ExtractError: see `decide`.

    Source: SC-02.
    """
    gathered = gather(path, exclude=exclude, progress=on_files)
    filtered = prefilter(gathered, prefilter_rules)
    if filtered.failures:
        raise ParseFailed(filtered.failures)
    name = label or gathered.label
    earlier = known(name)
    verdicts = decide(filtered.graph, agent=agent, known=earlier, progress=on_batches)
    by_person = {key: verdict for key, verdict in earlier.items() if not verdict.digest}
    canonical, decided = apply_verdicts(filtered.graph, {**verdicts, **by_person})
    graph, cleaned = clean_up(canonical, cleanup_rules)
    return Extraction(
        label=name,
        files=gathered.files,
        graph=graph,
        verdicts=verdicts,
        counts={
            "gathered": {"candidates": len(gathered.candidates), "relations": len(gathered.edges)},
            "prefilter": filtered.rejected,
            "verdicts": decided,
            "cleanup": cleaned,
            "kept": {"elements": len(graph.candidates), "relations": len(graph.edges)},
        },
        ignored=filtered.ignored,
        skipped=gathered.skipped,
    )
