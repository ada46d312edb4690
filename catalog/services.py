"""Writes of the catalogue: change sets are proposed, then applied or rejected; notes are added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from django.db import transaction
from django.db.models import F

from catalog import queries
from catalog.apply import write_ops
from catalog.canonicalize import NAME_CHARS, apply_verdicts
from catalog.diff import Op, diff_states
from catalog.errors import ChangeSetClosed, InvalidProposal
from catalog.extract import Extraction
from catalog.models import (
    CandidateVerdict,
    ChangeOp,
    ChangeSet,
    ChangeSetOrigin,
    Element,
    ElementNote,
    Repository,
    Scan,
)
from catalog.parse import one_line
from catalog.types import ElementState, Verdict, graph_of, states_of
from context.models import ScopeVersion
from tools.values import clean_text
from workspaces.models import User, Workspace

BATCH = 2_000
MAX_EDITS = 100
TITLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Edit:
    """One change that an agent or a person proposes.

    Args:
        op: give another display name, or take the element and all that it contains out.
        key: natural key of an element.
        name: for `rename`, 1 to 120 characters.
    """

    op: Literal["rename", "remove"]
    key: str
    name: str = ""


@transaction.atomic
def propose_changes(
    *,
    workspace: Workspace,
    extraction: Extraction,
    correlation_id: str,
    started_at: datetime,
    now: datetime,
    created_by: User | None = None,
) -> tuple[Scan, ChangeSet | None]:
    """Compare a scan with the catalogue and keep the difference as a change set.

    What earlier scans proposed and nobody decided is rejected: this scan takes its place.

    Args:
        workspace: whose catalogue.
        extraction: a finished run.
        correlation_id: of the command.
        started_at, now: aware UTC times at which the run began and ended.
        created_by: who scanned, None for a command.

    Returns:
        The scan, and its change set, None when nothing differs.

    Source: SC-02 step 5.
    """
    found, _ = Repository.objects.get_or_create(workspace=workspace, label=extraction.label)
    repository = Repository.objects.select_for_update().get(pk=found.pk)  # scans and applies of one come one by one
    scan = Scan.objects.create(
        workspace=workspace,
        repository=repository,
        files=extraction.files,
        counts=extraction.counts,
        correlation_id=correlation_id,
        started_at=started_at,
        ended_at=now,
    )
    _remember(repository, extraction.verdicts.values())
    ChangeSet.objects.supersede(repository, now=now)
    ops = diff_states(queries.states(repository), states_of(extraction.graph))
    if not ops:
        return scan, None
    change_set = _store(
        repository,
        ops,
        title=f"Scan of {repository.label}",
        origin=ChangeSetOrigin.SCAN,
        scan=scan,
        correlation_id=correlation_id,
        created_by=created_by,
        now=now,
    )
    return scan, change_set


@transaction.atomic
def propose_edits(
    *,
    workspace: Workspace,
    edits: Sequence[Edit],
    title: str,
    reason: str,
    correlation_id: str,
    created_by: User | None,
    now: datetime,
    repository: str = "",
) -> ChangeSet:
    """Keep renames and removals as a change set that a person applies; once applied they outlast every rescan.

    Args:
        edits: 1 to 100, of elements of one repository.
        title: 1 to 200 characters.
        reason: why, for whom decides.
        repository: a label; only needed when several repositories share a key.

    Raises:
        UnknownElement, AmbiguousElement: an edit names no element, or more than one.
        InvalidProposal: no title, no edit or too many, two of one element, none with an effect, or elements of several
            repositories.
    """
    title = one_line(title)
    if not 0 < len(title) <= TITLE_CHARS:
        raise InvalidProposal(reason=f"a title has 1 to {TITLE_CHARS} characters")
    if not 0 < len(edits) <= MAX_EDITS:
        raise InvalidProposal(reason=f"1 to {MAX_EDITS} edits make a change set", edits=len(edits))
    elements = [queries.element(workspace, edit.key, repository=repository) for edit in edits]
    owners = {e.repository for e in elements}
    if len(owners) > 1:
        raise InvalidProposal(reason="one change set, one repository", repositories=sorted(r.label for r in owners))
    verdicts = {edit.key: _verdict(edit) for edit in edits}
    if len(verdicts) < len(edits):
        raise InvalidProposal(reason="two edits of one element")
    before = queries.states(elements[0].repository)
    graph, _ = apply_verdicts(graph_of(before.values()), verdicts)
    ops = diff_states(before, states_of(graph))
    if not ops:
        raise InvalidProposal(reason="nothing would change")
    return _store(
        elements[0].repository,
        ops,
        title=title,
        reason=clean_text(reason),
        origin=ChangeSetOrigin.AGENT,
        verdicts=[{"key": v.key, "verdict": v.verdict, "name": v.name} for v in verdicts.values()],
        correlation_id=correlation_id,
        created_by=created_by,
        now=now,
    )


def apply_changeset(*, change_set_id: int, workspace: Workspace, by: User | None, now: datetime) -> ChangeSet:
    """Write a proposed change set, all of it or nothing; the workspace's snapshot version goes up last.

    Args:
        change_set_id: its key.
        workspace: whose; another workspace's change set does not exist here.
        by: who decided, None for a command.

    Raises:
        ChangeSetClosed: it is not proposed any more, or there is none.
        StaleChangeSet: elements changed since it was proposed.

    Source: SC-02 step 5, PRF-SC05-02.
    """
    with transaction.atomic():
        change_set = _open(change_set_id, workspace)
        Repository.objects.filter(pk=change_set.repository_id).update(revision=F("revision") + 1)
        if not ChangeSet.objects.take_apply(change_set.pk, by=by, now=now):
            raise ChangeSetClosed(change_set=change_set_id)
        write_ops(change_set.repository, list(change_set.ops.all()), change_set=change_set.pk)
        _remember(change_set.repository, (Verdict(**v) for v in change_set.verdicts))
        ScopeVersion.objects.bump([workspace.pk])
    change_set.refresh_from_db()
    return change_set


def reject_changeset(
    *, change_set_id: int, workspace: Workspace, by: User | None, note: str, now: datetime
) -> ChangeSet:
    """Close a proposed change set without writing it.

    Raises:
        ChangeSetClosed: it is not proposed any more, or there is none.
    """
    change_set = _open(change_set_id, workspace)
    if not ChangeSet.objects.take_reject(change_set.pk, by=by, note=note, now=now):
        raise ChangeSetClosed(change_set=change_set_id)
    change_set.refresh_from_db()
    return change_set


def annotate(*, element: Element, text: str, author: User | None) -> ElementNote:
    """Add a note to an element; it stays when the element is scanned again.

    Args:
        text: 1 to 4,000 characters.

    Raises:
        InvalidProposal: the text is empty or too long.
    """
    if not 0 < len(text.strip()) <= 4_000:
        raise InvalidProposal(reason="a note has 1 to 4,000 characters", characters=len(text))
    return ElementNote.objects.create(
        workspace_id=element.workspace_id,
        repository_id=element.repository_id,
        key=element.key,
        text=clean_text(text.strip()),
        author=author,
    )


def _open(change_set_id: int, workspace: Workspace) -> ChangeSet:
    found = ChangeSet.objects.for_workspace(workspace).filter(pk=change_set_id).select_related("repository").first()
    if found is None:
        raise ChangeSetClosed(change_set=change_set_id)
    return found


def _verdict(edit: Edit) -> Verdict:
    if edit.op == "remove":
        return Verdict(key=edit.key, verdict="reject")
    name = one_line(edit.name)
    if not 0 < len(name) <= NAME_CHARS:
        raise InvalidProposal(reason=f"a new name has 1 to {NAME_CHARS} characters", key=edit.key)
    return Verdict(key=edit.key, verdict="rename", name=name)


def _remember(repository: Repository, verdicts: Iterable[Verdict]) -> None:
    """Keep decisions. A model's never replaces a person's, which has no digest."""
    rows = [
        CandidateVerdict(
            workspace_id=repository.workspace_id,
            repository=repository,
            key=v.key,
            verdict=v.verdict,
            into=v.into,
            name=v.name,
            digest=v.digest,
        )
        for v in sorted(verdicts, key=lambda v: v.key)
    ]
    CandidateVerdict.objects.bulk_create(
        rows,
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["repository", "key"],
        update_fields=["verdict", "into", "name", "digest"],
    )


def _store(repository: Repository, ops: Sequence[Op], *, now: datetime, **columns: Any) -> ChangeSet:
    counts = {name: sum(op.op == kind for op in ops) for name, kind in _COUNTED.items()}
    change_set = ChangeSet.objects.create(
        workspace_id=repository.workspace_id, repository=repository, created_at=now, **counts, **columns
    )
    ChangeOp.objects.bulk_create(
        (
            ChangeOp(
                change_set=change_set, seq=seq, op=op.op, key=op.key, before=_json(op.before), after=_json(op.after)
            )
            for seq, op in enumerate(ops, start=1)
        ),
        batch_size=BATCH,
    )
    return change_set


_COUNTED: Mapping[str, str] = {"added": "add", "updated": "update", "deleted": "delete"}


def _json(state: ElementState | None) -> dict[str, object] | None:
    return state.to_json() if state else None
