"""Where a message goes on from: the turn it comes after and the message it answers (CAP-041)."""

from __future__ import annotations

from chat.errors import FieldInvalid
from chat.models import Conversation, Message, Turn


class Unset:
    """Nothing was said, which is not the same as None."""


UNSET = Unset()
Place = tuple[int | None, Message | None]  # the turn that a message comes after, and its parent


def place_for(
    conversation: Conversation, *, parent_id: int | Unset | None = UNSET, after_turn: int | Unset | None = UNSET
) -> Place:
    """Where a message with this parent, or after this turn, stands; the end of the active branch when neither is said.

    Args:
        parent_id: the last message of the turn that it comes after; None: the conversation's beginning.
        after_turn: that turn itself, which may have said nothing; None: the conversation's beginning.

    Raises:
        FieldInvalid: both are said, or there is no such place in the conversation.
    """
    if not isinstance(after_turn, Unset):
        if not isinstance(parent_id, Unset):
            raise FieldInvalid(field="after_turn", problem="stands in place of parent_id: send one of them")
        return _after(conversation, after_turn)
    if not isinstance(parent_id, Unset):
        return _behind(conversation, parent_id)
    return conversation.active_turn_id, last_message(conversation.active_turn_id)


def last_message(turn_id: int | None) -> Message | None:
    """What comes after a turn goes on from it: its last message, or the question that a silent try was to answer."""
    if turn_id is None:
        return None
    last = Message.objects.filter(turn_id=turn_id).order_by("-round", "-position").first()
    return last or Message.objects.filter(pk__in=Turn.objects.filter(pk=turn_id).values("question_id")).first()


def _after(conversation: Conversation, turn_id: int | None) -> Place:
    if turn_id is not None and not Turn.objects.filter(pk=turn_id, conversation=conversation).exists():
        raise FieldInvalid(field="after_turn", problem="is no turn of this conversation")
    return turn_id, last_message(turn_id)


def _behind(conversation: Conversation, parent_id: int | None) -> Place:
    if parent_id is None:
        return None, None
    parent = Message.objects.filter(pk=parent_id, conversation=conversation).first()
    if parent is None:
        raise FieldInvalid(field="parent_id", problem="is no message of this conversation")
    last = last_message(parent.turn_id)
    if last is not None and last.pk != parent.pk:
        raise FieldInvalid(field="parent_id", problem=f"is not the last message of its turn; that is {last.pk}")
    return parent.turn_id, parent
