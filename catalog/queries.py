"""Reads of the catalogue, each within one workspace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add, and_, or_

from django.db.models import Case, Count, ExpressionWrapper, IntegerField, Q, QuerySet, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Length

from catalog.errors import AmbiguousElement, UnknownElement
from catalog.models import CandidateVerdict, ChangeSet, Element, ElementNote, Relation, RelationKind, Repository
from catalog.types import ElementState, Verdict
from tools.values import clean_text
from workspaces.models import Workspace

MAX_WORDS = 12


def known_verdicts(workspace: Workspace, label: str) -> dict[str, Verdict]:
    """Earlier decisions about a repository's candidates, by key; empty for a repository that was never scanned."""
    rows = CandidateVerdict.objects.for_workspace(workspace).filter(repository__label=label)
    return {
        row.key: Verdict(
            key=row.key,
            verdict=row.verdict,  # type: ignore[arg-type]  # the column's choices are the literal's values
            into=row.into,
            name=row.name,
            digest=row.digest,
        )
        for row in rows
    }


def states(repository: Repository, keys: Collection[str] | None = None) -> dict[str, ElementState]:
    """A repository's elements with their outgoing edges, by key.

    Args:
        repository: whose.
        keys: only these; None: all.
    """
    elements = Element.objects.filter(repository=repository)
    edges = Relation.objects.filter(source__repository=repository).exclude(kind=RelationKind.CONTAINS)
    if keys is not None:
        elements = elements.filter(key__in=keys)
        edges = edges.filter(source__key__in=keys)
    imports: dict[str, list[str]] = {}
    inherits: dict[str, list[str]] = {}
    for source, kind, target in edges.values_list("source__key", "kind", "target__key"):
        (imports if kind == RelationKind.IMPORTS else inherits).setdefault(source, []).append(target)
    return {
        row.key: ElementState(
            key=row.key,
            kind=row.kind,
            name=row.name,
            path=row.path,
            line=row.line,
            summary=row.summary,
            parent=row.parent,
            attributes=row.attributes,
            imports=tuple(sorted(imports.get(row.key, ()))),
            inherits=tuple(sorted(inherits.get(row.key, ()))),
        )
        for row in elements
    }


@dataclass(frozen=True, slots=True)
class Found:
    """The first elements that a search found, and how many it found in all."""

    elements: list[Element]
    total: int


def search(workspace: Workspace, query: str, *, kind: str = "", repository: str = "", limit: int = 20) -> Found:
    """Elements whose name, key or summary holds every word of `query`, or else any of them; the closest first.

    Args:
        workspace: only its elements.
        query: words, of which the first 12 count; none finds everything, in key order.
        kind: one of `catalog.types.KINDS`, or empty.
        repository: a repository's label, or empty.
        limit: how many at most.
    """
    scope = Element.objects.for_workspace(workspace).select_related("repository")
    if kind:
        scope = scope.filter(kind=kind)
    if repository:
        scope = scope.filter(repository__label=repository)
    words = list(dict.fromkeys(clean_text(query).lower().split()))[:MAX_WORDS]
    if not words:
        return _page(scope.order_by("key", "repository_id"), limit)
    holds = [Q(key__icontains=word) | Q(name__icontains=word) | Q(summary__icontains=word) for word in words]
    distance = ExpressionWrapper(reduce(add, map(_distance, words)), output_field=IntegerField())
    ordered = scope.order_by(distance, Length("key"), "key", "repository_id")
    found = _page(ordered.filter(reduce(and_, holds)), limit)
    return found if found.elements else _page(ordered.filter(reduce(or_, holds)), limit)


def _page(ordered: QuerySet[Element], limit: int) -> Found:
    """The head of a list and its length; the whole is counted only where the head does not show it."""
    head = list(ordered[: limit + 1])
    return Found(head[:limit], ordered.count() if len(head) > limit else len(head))


def is_empty(workspace: Workspace) -> bool:
    """Whether the catalogue holds no element at all."""
    return not Element.objects.for_workspace(workspace).exists()


def _distance(word: str) -> Combinable:
    """How far an element is from one word; of equal names a container comes first."""
    container = Q(kind__in=("package", "module", "model", "app"))
    return Case(
        When(Q(name__iexact=word) & container, then=Value(0)),
        When(name__iexact=word, then=Value(1)),
        When(key__iendswith=f".{word}", then=Value(2)),
        When(name__icontains=word, then=Value(3)),
        When(key__icontains=word, then=Value(5)),
        When(summary__icontains=word, then=Value(7)),
        default=Value(9),
        output_field=IntegerField(),
    )


def element(workspace: Workspace, key: str, *, repository: str = "") -> Element:
    """The element with this natural key.

    Raises:
        UnknownElement: none; the details list keys that resemble it.
        AmbiguousElement: several repositories have it.
    """
    found = list(
        Element.objects.for_workspace(workspace)
        .filter(key=clean_text(key), **({"repository__label": repository} if repository else {}))
        .select_related("repository")[:10]
    )
    if len(found) > 1:
        raise AmbiguousElement(key=key, repositories=sorted(e.repository.label for e in found))
    if not found:
        similar = search(workspace, key.rpartition(":")[2].rpartition(".")[2][:100], limit=5)
        raise UnknownElement(key=clean_text(key)[:200], similar=[e.key for e in similar.elements])
    return found[0]


def children(parent: Element, *, limit: int) -> QuerySet[Element]:
    """What an element contains, in key order."""
    return Element.objects.filter(repository=parent.repository_id, parent=parent.key).order_by("key")[:limit]


def notes(about: Element, *, limit: int = 20) -> QuerySet[ElementNote]:
    """The newest notes on an element."""
    return ElementNote.objects.filter(repository=about.repository_id, key=about.key).order_by("-pk")[:limit]


@dataclass(frozen=True, slots=True)
class Dependency:
    """One neighbour of an element, and over how many relations of this kind."""

    key: str
    relation: str
    times: int


def dependencies(of: Element, *, incoming: bool, limit: int | None = None) -> list[Dependency]:
    """What an element and all that it contains import or inherit from, the most frequent first.

    Args:
        of: the element; relations inside it do not count.
        incoming: who depends on it, else what it depends on.
        limit: how many at most; None: all.
    """
    inside = _inside(of)
    side, other = ("target", "source") if incoming else ("source", "target")
    found = (
        Relation.objects.filter(**{f"{side}_id__in": inside})
        .exclude(kind=RelationKind.CONTAINS)
        .exclude(**{f"{other}_id__in": inside})
        .values_list(f"{other}__key", "kind")
        .annotate(times=Count("pk"))
        .order_by("-times", f"{other}__key", "kind")
    )
    return [Dependency(key, kind, times) for key, kind, times in found[:limit]]


def _inside(of: Element) -> list[int]:
    """Keys of an element's row and of the rows below it."""
    found = [of.pk]
    level = [of.key]
    while level:
        rows = list(Element.objects.filter(repository=of.repository_id, parent__in=level).values_list("pk", "key"))
        found += [pk for pk, _ in rows]
        level = [key for _, key in rows]
    return found


def counts_by_kind(workspace: Workspace) -> dict[str, dict[str, int]]:
    """How many elements of each kind, by repository."""
    rows = (
        Element.objects.for_workspace(workspace)
        .values_list("repository__label", "kind")
        .annotate(n=Count("pk"))
        .order_by("repository__label", "kind")
    )
    counts: dict[str, dict[str, int]] = {}
    for label, kind, n in rows:
        counts.setdefault(label, {})[kind] = n
    return counts


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """A package with everything below it.

    Args:
        modules: how many modules it has, itself included.
        used_by: how many modules outside import something in it.
        uses: how many modules and externals outside it imports.
    """

    key: str
    repository: str
    summary: str
    modules: int
    used_by: int
    uses: int


def leading_packages(workspace: Workspace, *, limit: int) -> list[PackageFacts]:
    """The packages that most modules outside them import, the largest first among equals."""
    rows = list(
        Element.objects.for_workspace(workspace)
        .filter(key__startswith="module:")
        .values_list("pk", "repository_id", "repository__label", "key", "kind", "parent", "summary")
    )
    ids = {(repository, key): pk for pk, repository, _, key, _, _, _ in rows}
    parents = {pk: ids.get((repository, parent)) for pk, repository, _, _, _, parent, _ in rows}
    modules: Counter[int] = Counter()
    for pk in parents:
        modules.update(_above(pk, parents))
    incoming: dict[int, set[int]] = defaultdict(set)
    outgoing: dict[int, set[int]] = defaultdict(set)
    imports = Relation.objects.for_workspace(workspace).filter(kind=RelationKind.IMPORTS)
    for source, target in imports.values_list("source_id", "target_id"):
        sources, targets = _above(source, parents), _above(target, parents)
        for package in targets - sources:
            incoming[package].add(source)
        for package in sources - targets:
            outgoing[package].add(target)
    packages = [
        PackageFacts(key, label, summary, modules[pk], len(incoming[pk]), len(outgoing[pk]))
        for pk, _, label, key, kind, _, summary in rows
        if kind == "package"
    ]
    return sorted(packages, key=lambda p: (-p.used_by, -p.modules, p.key, p.repository))[:limit]


def _above(pk: int, parents: Mapping[int, int | None]) -> set[int]:
    """A module and the packages around it; only itself for an external."""
    found: set[int] = set()
    current: int | None = pk
    while current is not None and current not in found:
        found.add(current)
        current = parents.get(current)
    return found


def recent_notes(workspace: Workspace, *, limit: int) -> QuerySet[ElementNote]:
    """The newest notes."""
    return ElementNote.objects.for_workspace(workspace).order_by("-pk")[:limit]


def recent_change_sets(workspace: Workspace, *, limit: int) -> QuerySet[ChangeSet]:
    """The newest change sets with their repository."""
    return ChangeSet.objects.for_workspace(workspace).select_related("repository").order_by("-pk")[:limit]
