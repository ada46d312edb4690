"""The tools of the policy layer itself."""

from __future__ import annotations

from typing import TypedDict

from django.db.models import Q

from tools.errors import NoSuchResult
from tools.models import StoredResult
from tools.registry import tool
from tools.results import characters_for
from tools.settings import tool_settings
from tools.types import ToolContext


class ResultPage(TypedDict):
    """A part of a result; `next_offset` is None at its end."""

    text: str
    offset: int
    next_offset: int | None
    characters: int


@tool(effect="read", chat=True, label="Read a long result")
def read_result(handle: str, context: ToolContext, offset: int = 0) -> ResultPage:
    """Read on in a tool result that was too long to be shown whole.

    Args:
        handle: the handle that the shortened result names.
        offset: the first character wanted; the page before names it as `next_offset`.

    Source: CAP-031.
    """
    if not handle.isdecimal() or len(handle) > 18:
        raise NoSuchResult(handle="unknown")
    mine = Q(execution__owner_kind=context.owner_kind, execution__owner_id=context.owner_id)
    if context.conversation_id is not None:
        mine |= Q(execution__conversation_id=context.conversation_id)
    if context.plan_id is not None:
        mine |= Q(execution__plan_id=context.plan_id)
    stored = StoredResult.objects.filter(mine, pk=int(handle), execution__workspace=context.workspace).first()
    if stored is None:
        raise NoSuchResult(handle=handle)
    offset = max(0, offset)
    rest = stored.text[offset:]
    shown = characters_for(rest, tool_settings().result_tokens // 2) if rest else 0
    end = offset + shown
    return ResultPage(
        text=rest[:shown],
        offset=offset,
        next_offset=end if end < len(stored.text) else None,
        characters=len(stored.text),
    )
