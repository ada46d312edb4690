"""What agents can do with the catalogue, each within the workspace of the call (CAP-030)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from catalog import queries, services
from catalog.agent_snapshot import how_to_fill
from catalog.models import Element
from catalog.types import Kind
from tools.registry import tool
from tools.types import ToolContext

MAX_LIMIT = 50
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
TEXT_CHARS = 300


class ElementLine(TypedDict):
    """One element, shortly."""

    key: str
    name: str
    kind: str
    repository: str
    path: str
    line: int
    summary: str


@tool(effect="read", chat=True)
def search_elements(
    context: ToolContext, query: str, kind: Kind | None = None, repository: str = "", limit: Limit = 20
) -> dict[str, Any]:
    """Find architecture elements whose name, key or summary holds the words of the query, the closest first.

    Args:
        query: one or more words, such as "auth" or "password reset"; elements that hold all of them, or else any.
        kind: only elements of this kind.
        repository: only this repository, by its label.
        limit: how many at most, 1 to 50.
    """
    found = queries.search(context.workspace, query, kind=kind or "", repository=repository, limit=limit)
    answer = {
        "total": found.total,
        "elements": [_line(e) for e in found.elements],
        "more": found.total > len(found.elements),
    }
    return answer if found.total else answer | _if_empty(context)


@tool(effect="read")
def get_element(context: ToolContext, key: str, repository: str = "") -> dict[str, Any]:
    """Everything known about one element: where it is, what contains it, what it contains, its dependencies and notes.

    Args:
        key: the element's key, such as "module:django.contrib.auth".
        repository: the repository's label; only needed when several hold this key.
    """
    element = queries.element(context.workspace, key, repository=repository)
    inside = list(queries.children(element, limit=MAX_LIMIT + 1))
    return {
        **_line(element),
        "parent": element.parent,
        "attributes": element.attributes,
        "contains": [{"key": e.key, "kind": e.kind, "summary": e.summary[:120]} for e in inside[:MAX_LIMIT]],
        "contains_more": len(inside) > MAX_LIMIT,
        "depends_on": len(queries.dependencies(element, incoming=False)),
        "used_by": len(queries.dependencies(element, incoming=True)),
        "notes": [
            {"text": n.text[:TEXT_CHARS], "at": n.created_at.isoformat()} for n in queries.notes(element, limit=10)
        ],
    }


@tool(effect="read", chat=True)
def list_dependencies(
    context: ToolContext,
    key: str,
    direction: Literal["outgoing", "incoming"] = "outgoing",
    limit: Limit = 50,
    repository: str = "",
) -> dict[str, Any]:
    """What an element imports or inherits from, or who does so from it. What it contains counts with it.

    Args:
        key: the element's key.
        direction: "outgoing" for what it depends on, "incoming" for who depends on it.
        limit: how many at most, 1 to 50.
        repository: the repository's label; only needed when several hold this key.
    """
    element = queries.element(context.workspace, key, repository=repository)
    found = queries.dependencies(element, incoming=direction == "incoming")
    return {
        "key": element.key,
        "direction": direction,
        "total": len(found),
        "dependencies": [{"key": d.key, "relation": d.relation, "times": d.times} for d in found[:limit]],
        "more": len(found) > limit,
    }


@tool(effect="read", chat=True)
def catalog_overview(context: ToolContext) -> dict[str, Any]:
    """How many elements of each kind every repository has, and the packages that others lean on most."""
    return _if_empty(context) | {
        "repositories": queries.counts_by_kind(context.workspace),
        "packages": [
            {"key": f.key, "repository": f.repository, "modules": f.modules, "used_by": f.used_by, "uses": f.uses}
            for f in queries.leading_packages(context.workspace, limit=15)
        ],
    }


@tool(effect="write", permission="capstan_catalog.change_element")
def annotate_element(context: ToolContext, key: str, note: str, repository: str = "") -> dict[str, Any]:
    """Write a note on an element for the team; it stays when the source is scanned again.

    Args:
        key: the element's key.
        note: the note, up to 4,000 characters.
        repository: the repository's label; only needed when several hold this key.
    """
    element = queries.element(context.workspace, key, repository=repository)
    stored = services.annotate(element=element, text=note, author=context.user)
    return {"note": stored.pk, "key": element.key}


@tool(effect="write", permission="capstan_catalog.add_changeset")
def propose_changeset(
    context: ToolContext,
    title: str,
    reason: str,
    rename: dict[str, str] | None = None,
    remove: list[str] | None = None,
    repository: str = "",
) -> dict[str, Any]:
    """Propose changes to the catalogue. Nothing changes until a person applies the change set.

    Args:
        title: what the change set is about, up to 200 characters.
        reason: why, for the person who decides.
        rename: new display names by element key.
        remove: keys of elements to take out, each with all that it contains.
        repository: the repository's label; only needed when several hold a key.
    """
    edits = [services.Edit(op="rename", key=key, name=name) for key, name in (rename or {}).items()]
    edits += [services.Edit(op="remove", key=key) for key in remove or []]
    change_set = services.propose_edits(
        workspace=context.workspace,
        edits=edits,
        title=title,
        reason=reason,
        correlation_id=context.correlation_id,
        created_by=context.user,
        now=context.now,
        repository=repository,
    )
    return {
        "change_set": change_set.pk,
        "status": change_set.status,
        "add": change_set.added,
        "update": change_set.updated,
        "delete": change_set.deleted,
    }


def _if_empty(context: ToolContext) -> dict[str, Any]:
    """A field that says so when the catalogue holds nothing, so that nobody takes that for an answer about the code."""
    return {"empty": how_to_fill(context.workspace)} if queries.is_empty(context.workspace) else {}


def _line(element: Element) -> ElementLine:
    return ElementLine(
        key=element.key,
        name=element.name,
        kind=element.kind,
        repository=element.repository.label,
        path=element.path,
        line=element.line,
        summary=element.summary[:TEXT_CHARS],
    )
