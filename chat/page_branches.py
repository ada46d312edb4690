"""What a page needs to edit a question, to ask again, and to leaf through what was asked and answered before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q

from blackboard.types import KEYS, Board
from chat.models import Turn


@dataclass(frozen=True, slots=True)
class Pager:
    """Where one of several versions stands.

    Args:
        number: of the one shown, from 1.
        before, after: a turn of the version beside it, to be named to the API; None at the ends.
    """

    number: int
    count: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class BranchView:
    """A turn's place among its alternatives.

    Args:
        after: the `after_turn` of an edited question: a turn's key, `none` for the conversation's beginning.
        questions: the versions of its question; None when there is one alone.
        answers: the tries at this question; None when there is one alone.
    """

    after: str = ""
    questions: Pager | None = None
    answers: Pager | None = None


@dataclass(frozen=True, slots=True)
class BoardLine:
    """One key of the board."""

    key: str
    label: str
    value: str


def board_lines(board: Board) -> list[BoardLine]:
    """A board, all its keys in order; empty values are what the agent left out (CAP-070)."""
    return [BoardLine(key, key.replace("_", " ").capitalize(), str(board.get(key) or "")) for key in KEYS]


def branch_views(turns: Sequence[Turn]) -> dict[int, BranchView]:
    """By turn of one branch: its alternatives, in one query."""
    if not turns:
        return {}
    beside = _turns_beside(turns)
    return {turn.pk: _view(turn, beside[turn.after_id]) for turn in turns}


def _view(turn: Turn, beside: dict[int, list[int]]) -> BranchView:
    if turn.question_id is None:
        return BranchView()
    return BranchView(
        after="none" if turn.after_id is None else str(turn.after_id),
        questions=_pager({question: tries[-1] for question, tries in beside.items()}, turn.question_id),
        answers=_pager({key: key for key in beside[turn.question_id]}, turn.pk),
    )


def _pager(versions: dict[int, int], shown: int) -> Pager | None:
    """Args: versions: a turn to name each by, in order."""
    if len(versions) < 2:
        return None
    place = list(versions).index(shown)
    turns = [None, *versions.values(), None]
    return Pager(number=place + 1, count=len(versions), before=turns[place], after=turns[place + 2])


def _turns_beside(turns: Sequence[Turn]) -> dict[int | None, dict[int, list[int]]]:
    """By the turn they come after, then by question: the turns, the oldest first."""
    beside: dict[int | None, dict[int, list[int]]] = {turn.after_id: {} for turn in turns}
    keys = [key for key in beside if key is not None]
    after = Q(after_id__in=keys) | Q(after_id=None) if None in beside else Q(after_id__in=keys)
    rows = Turn.objects.filter(after, conversation_id=turns[0].conversation_id, question_id__isnull=False)
    for key, after_id, question in rows.order_by("pk").values_list("pk", "after_id", "question_id"):
        assert question is not None  # the query says so
        beside[after_id].setdefault(question, []).append(key)
    return beside
