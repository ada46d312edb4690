"""What a page needs to edit a question, to ask again, and to leaf through what was asked and answered before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Max, Q

from blackboard.types import KEYS
from chat.models import Conversation, Message, Turn


@dataclass(frozen=True, slots=True)
class Pager:
    """Where one of several versions stands.

    Args:
        number: of the one shown, from 1.
        before, after: a message of the version beside it, to be named to the API; None at the ends.
    """

    number: int
    count: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class BranchView:
    """A turn's place among its alternatives.

    Args:
        parent: the `parent_id` of an edited question: a message's key, `none` for the conversation's beginning; empty
            when the question cannot be edited.
        questions: the versions of its question; None when there is one alone.
        answers: the tries at this question; None when there is one alone.
    """

    parent: str = ""
    questions: Pager | None = None
    answers: Pager | None = None


@dataclass(frozen=True, slots=True)
class BoardLine:
    """One key of the board."""

    key: str
    label: str
    value: str


def board_lines(conversation: Conversation) -> list[BoardLine]:
    """The conversation's board, all its keys in order; empty values are what the agent left out (CAP-070)."""
    return [BoardLine(key, key.replace("_", " ").capitalize(), str(conversation.board.get(key) or "")) for key in KEYS]


def branch_views(turns: Sequence[Turn]) -> dict[int, BranchView]:
    """By turn of one branch: its alternatives, in three queries at most."""
    if not turns:
        return {}
    parents = dict(Message.objects.filter(pk__in=[turn.question_id for turn in turns]).values_list("pk", "parent_id"))
    beside = _turns_beside(turns)
    # A try that ended before it said anything has no message to name; it is left out where it is not the one shown.
    said = dict(
        Message.objects.filter(turn_id__in=[key for tries in beside.values() for key in _several(tries)])
        .exclude(role="note")
        .values_list("turn_id")
        .annotate(key=Max("pk"))
    )
    return {turn.pk: _view(turn, parents, beside[turn.after_id], said) for turn in turns}


def _view(
    turn: Turn, parents: Mapping[int, int | None], beside: dict[int, list[int]], said: dict[int, int]
) -> BranchView:
    if turn.question_id is None:
        return BranchView()
    parent = parents.get(turn.question_id)
    tries = {key: said.get(key) for key in beside[turn.question_id]}
    asked = {
        question: next((said[key] for key in reversed(keys) if key in said), None) for question, keys in beside.items()
    }
    return BranchView(
        parent=str(parent) if parent is not None else "none" if turn.after_id is None else "",
        questions=_pager(asked, turn.question_id),
        answers=_pager(tries, turn.pk),
    )


def _pager(versions: dict[int, int | None], shown: int) -> Pager | None:
    """Args: versions: a message to name each by, in order."""
    reachable = [(key, message) for key, message in versions.items() if message is not None or key == shown]
    if len(reachable) < 2:
        return None
    place = [key for key, _ in reachable].index(shown)
    messages = [None, *(message for _, message in reachable), None]
    return Pager(number=place + 1, count=len(reachable), before=messages[place], after=messages[place + 2])


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


def _several(tries: dict[int, list[int]]) -> Iterable[int]:
    keys = [key for each in tries.values() for key in each]
    return keys if len(keys) > 1 else ()
