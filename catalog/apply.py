"""Writes a change set's ops in bulk, after checking that the catalogue is still what they were made for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db.models import Q

from catalog import queries
from catalog.errors import StaleChangeSet
from catalog.models import ChangeOp, Element, Relation, RelationKind, Repository
from catalog.types import ElementState

BATCH = 2_000
_COLUMNS = ("kind", "name", "path", "line", "summary", "parent", "attributes")


def write_ops(repository: Repository, ops: Sequence[ChangeOp], *, change_set: int) -> None:
    """Delete, then update, then add; call it inside a transaction.

    A key that is both deleted and added is replaced where it stands, so that what points at it goes on doing so.

    Args:
        repository: whose elements; the caller holds its row's lock, so applies come one by one.
        ops: all ops of one change set, in any order.
        change_set: its key, for errors.

    Raises:
        StaleChangeSet: an element is not what its op says it was, or would be left pointing at nothing.
    """
    before = {op.key: ElementState.from_json(op.before) for op in ops if op.before is not None}
    after = {op.key: ElementState.from_json(op.after) for op in ops if op.after is not None}
    _check_unchanged(repository, before, after, change_set)
    deleted = before.keys() - after.keys()
    updated = before.keys() & after.keys()
    added = after.keys() - before.keys()
    rewired = {key for key in updated if _edges(before[key]) != _edges(after[key])}
    _check_dangling(repository, deleted, rewired, change_set)

    for batch in _batches(deleted):
        Element.objects.filter(repository=repository, key__in=batch).delete()
    _update(repository, [after[key] for key in sorted(updated)])
    Element.objects.bulk_create(
        (_row(repository, after[key]) for key in sorted(added)),
        batch_size=BATCH,
    )
    _rewire(repository, [after[key] for key in sorted(rewired | added)], change_set)


def _check_unchanged(
    repository: Repository, before: Mapping[str, ElementState], after: Mapping[str, ElementState], change_set: int
) -> None:
    touched = before.keys() | after.keys()
    current = queries.states(repository, touched if len(touched) <= BATCH else None)
    changed = sorted(key for key in touched if current.get(key) != before.get(key))
    if changed:
        raise StaleChangeSet(change_set=change_set, changed=changed[:20], count=len(changed))


def _check_dangling(repository: Repository, deleted: Iterable[str], rewired: set[str], change_set: int) -> None:
    """Refuse to delete what an element outside this change set imports, inherits or is contained in."""
    gone = set(deleted)
    dangling: set[str] = set()
    for batch in _batches(gone):
        touching = Relation.objects.filter(
            Q(target__key__in=batch) & ~Q(kind=RelationKind.CONTAINS) | Q(source__key__in=batch, kind="contains"),
            source__repository=repository,
        )
        for kind, source, target in touching.values_list("kind", "source__key", "target__key"):
            holder = target if kind == RelationKind.CONTAINS else source
            if holder not in gone and holder not in rewired:
                dangling.add(holder)
    if dangling:
        raise StaleChangeSet(change_set=change_set, left_dangling=sorted(dangling)[:20], count=len(dangling))


def _update(repository: Repository, wanted: Sequence[ElementState]) -> None:
    ids = dict(Element.objects.filter(repository=repository).values_list("key", "pk")) if wanted else {}
    rows = [_row(repository, state, pk=ids[state.key]) for state in wanted]
    Element.objects.bulk_update(rows, _COLUMNS, batch_size=500)


def _rewire(repository: Repository, wanted: Sequence[ElementState], change_set: int) -> None:
    """Replace the outgoing edges of these elements, and the edge from what contains each."""
    if not wanted:
        return
    ids = dict(Element.objects.filter(repository=repository).values_list("key", "pk"))
    for batch in _batches(state.key for state in wanted):
        Relation.objects.filter(
            Q(source__key__in=batch) & ~Q(kind=RelationKind.CONTAINS) | Q(target__key__in=batch, kind="contains"),
            source__repository=repository,
        ).delete()
    triples = sorted({triple for state in wanted for triple in _triples(state)})
    missing = sorted({key for triple in triples for key in (triple[0], triple[2]) if key not in ids})
    if missing:
        raise StaleChangeSet(change_set=change_set, missing=missing[:20], count=len(missing))
    Relation.objects.bulk_create(
        (
            Relation(workspace_id=repository.workspace_id, source_id=ids[source], kind=kind, target_id=ids[target])
            for source, kind, target in triples
        ),
        batch_size=BATCH,
    )


def _triples(state: ElementState) -> Iterable[tuple[str, str, str]]:
    if state.parent:
        yield state.parent, RelationKind.CONTAINS.value, state.key
    for target in state.imports:
        yield state.key, RelationKind.IMPORTS.value, target
    for target in state.inherits:
        yield state.key, RelationKind.INHERITS.value, target


def _edges(state: ElementState) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return state.parent, state.imports, state.inherits


def _row(repository: Repository, state: ElementState, pk: int | None = None) -> Element:
    return Element(
        pk=pk,
        workspace_id=repository.workspace_id,
        repository=repository,
        key=state.key,
        **{column: getattr(state, column) for column in _COLUMNS},
    )


def _batches(keys: Iterable[str]) -> Iterable[list[str]]:
    ordered = sorted(keys)
    for start in range(0, len(ordered), BATCH):
        yield ordered[start : start + BATCH]
