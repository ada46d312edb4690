"""The catalogue's part of the snapshot: what there is, what leans on what, and what changed lately (CAP-037)."""

from __future__ import annotations

from typing import Any

from catalog import queries
from catalog.models import ChangeSet, ElementNote
from context.registry import SnapshotScope, snapshot_builder
from workspaces.models import Workspace

REPOSITORIES, PACKAGES, CHANGE_SETS, NOTES = 10, 30, 10, 10
TEXT_CHARS = 160


@snapshot_builder("catalog")
def build(scope: SnapshotScope) -> dict[str, Any]:
    """Counts by kind, the packages that others lean on most, and recent change sets and notes.

    An empty catalogue says so in a field `empty`, and how to fill it.

    At most 10 repositories, 30 packages, 10 change sets and 10 notes, whatever the catalogue's size.

    Args:
        scope: the workspace; the user makes no difference.
    """
    workspace = scope.workspace
    counts = queries.counts_by_kind(workspace)
    return ({} if counts else {"empty": how_to_fill(workspace)}) | {
        "repositories": [
            {"repository": label, "elements": sum(kinds.values()), "by_kind": kinds}
            for label, kinds in sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0]))[
                :REPOSITORIES
            ]
        ],
        "repositories_in_all": len(counts),
        "packages": [
            {
                "key": facts.key,
                "repository": facts.repository,
                "modules": facts.modules,
                "used_by": facts.used_by,
                "uses": facts.uses,
                "summary": facts.summary[:TEXT_CHARS],
            }
            for facts in queries.leading_packages(workspace, limit=PACKAGES)
        ],
        "change_sets": [_change_set(c) for c in queries.recent_change_sets(workspace, limit=CHANGE_SETS)],
        "notes": [_note(n) for n in queries.recent_notes(workspace, limit=NOTES)],
    }


def how_to_fill(workspace: Workspace) -> str:
    """What agents and people are told of a catalogue without elements."""
    return (
        "The catalogue of this workspace is empty: no source tree was scanned and applied yet, so nothing can be said"
        " about the code. An operator fills it with"
        f" `manage.py extract_elements PATH --workspace {workspace.slug} --apply`."
    )


def _change_set(row: ChangeSet) -> dict[str, Any]:
    return {
        "id": row.pk,
        "title": row.title[:TEXT_CHARS],
        "repository": row.repository.label,
        "status": row.status,
        "add": row.added,
        "update": row.updated,
        "delete": row.deleted,
        "created_at": row.created_at.isoformat(),
    }


def _note(row: ElementNote) -> dict[str, Any]:
    return {"key": row.key, "note": row.text[:TEXT_CHARS], "created_at": row.created_at.isoformat()}
