"""Frozen values of the extraction: what a scan found, what was made of it. They know nothing of storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["package", "module", "class", "function", "model", "view", "task", "command", "app", "external"]
KINDS: tuple[Kind, ...] = get_args(Kind)
VerdictName = Literal["keep", "rename", "merge", "reject"]
VERDICTS: tuple[VerdictName, ...] = get_args(VerdictName)
KEY_CHARS = 500
OpName = Literal["delete", "update", "add"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something in a source tree that may become an element.

    Args:
        key: the natural key, `module:a.b`, `class:a.b.C`, `function:a.b.f` or `external:name`. Its prefix is the
            syntactic form, so it stays when a module becomes a package or a class turns out to be a model.
        kind: what it is read as.
        name: the last part of its dotted name.
        path: POSIX path relative to the scanned root; empty for an external.
        line: first line, from 1; 0 for an external.
        end_line: last line.
        summary: first line of its docstring, at most 300 characters.
        parent: key of what contains it, or empty.
        attributes: plain JSON values.
        generated: its file says that a program wrote it.
    """

    key: str
    kind: Kind
    name: str
    path: str
    line: int = 0
    end_line: int = 0
    summary: str = ""
    parent: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    generated: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """A directed relation between two keys; `contains` is not listed, it follows from `Candidate.parent`."""

    source: str
    kind: Literal["imports", "inherits"]
    target: str


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """A file that could not be read or parsed; `line` is 0 where no line is known."""

    path: str
    reason: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}" if self.line else f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything a scan saw, in the order of path and line.

    Args:
        files: how many Python files were looked at.
        candidates: unfiltered; a key may occur more than once.
        edges: sorted, without repetition; a target may be a key that no candidate has.
        failures: files that could not be read or parsed.
        skipped: symbolic links and special files, relative paths; never opened.
    """

    files: int
    candidates: tuple[Candidate, ...]
    edges: tuple[Edge, ...]
    failures: tuple[Failure, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """Candidates with distinct keys and the edges between them."""

    candidates: tuple[Candidate, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What D1 (or a person) decided about one candidate.

    Args:
        key: the candidate.
        verdict: keep as it is, rename it, merge it into another, or reject it with all that it contains.
        into: for `merge`: the key that takes its place.
        name: for `rename`: the new display name; the key never changes.
        digest: of the text that the decision was made on; a changed candidate is asked about again.
    """

    key: str
    verdict: VerdictName
    into: str = ""
    name: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ElementState:
    """One element with its outgoing edges, as a change set records it before and after.

    Args:
        key: the natural key.
        parent: key of the containing element, or empty.
        imports: keys it imports, sorted.
        inherits: keys it inherits from, sorted.
    """

    key: str
    kind: str
    name: str
    path: str
    line: int
    summary: str
    parent: str
    attributes: Mapping[str, Any]
    imports: tuple[str, ...] = ()
    inherits: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the JSON object of a `ChangeOp`."""
        return {
            "key": self.key,
            "kind": self.kind,
            "name": self.name,
            "path": self.path,
            "line": self.line,
            "summary": self.summary,
            "parent": self.parent,
            "attributes": dict(self.attributes),
            "imports": list(self.imports),
            "inherits": list(self.inherits),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ElementState:
        """Inverse of `to_json`."""
        return cls(**{**data, "imports": tuple(data["imports"]), "inherits": tuple(data["inherits"])})


def states_of(graph: Graph) -> dict[str, ElementState]:
    """The graph as element states by key, each with its outgoing edges."""
    imports: dict[str, list[str]] = {}
    inherits: dict[str, list[str]] = {}
    for edge in sorted(set(graph.edges)):
        (imports if edge.kind == "imports" else inherits).setdefault(edge.source, []).append(edge.target)
    return {c.key: _state(c, imports.get(c.key, ()), inherits.get(c.key, ())) for c in graph.candidates}


def _state(candidate: Candidate, imports: Iterable[str], inherits: Iterable[str]) -> ElementState:
    span = {"lines": candidate.end_line - candidate.line + 1} if candidate.line else {}
    return ElementState(
        key=candidate.key,
        kind=candidate.kind,
        name=candidate.name,
        path=candidate.path,
        line=candidate.line,
        summary=candidate.summary,
        parent=candidate.parent,
        attributes={**candidate.attributes, **span},
        imports=tuple(imports),
        inherits=tuple(inherits),
    )


def graph_of(states: Iterable[ElementState]) -> Graph:
    """Inverse of `states_of`."""
    listed = sorted(states, key=lambda s: s.key)
    edges = [Edge(s.key, "imports", target) for s in listed for target in s.imports]
    edges += [Edge(s.key, "inherits", target) for s in listed for target in s.inherits]
    return Graph(tuple(_candidate(state) for state in listed), tuple(sorted(edges)))


def _candidate(state: ElementState) -> Candidate:
    attributes = {name: value for name, value in state.attributes.items() if name != "lines"}
    return Candidate(
        key=state.key,
        kind=state.kind,  # type: ignore[arg-type]  # it was a Candidate's
        name=state.name,
        path=state.path,
        line=state.line,
        end_line=state.line + state.attributes.get("lines", 1) - 1,
        summary=state.summary,
        parent=state.parent,
        attributes=attributes,
    )
