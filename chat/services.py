"""Writes: conversations, the messages people send, and what they do to a turn from outside."""

from __future__ import annotations

import uuid
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from chat.branches import UNSET, Unset, place_for
from chat.errors import ConversationBusy, FieldInvalid, TurnActive
from chat.models import Conversation, IdempotencyKey, Message, Turn
from chat.queries import active_turn, latest_below
from chat.settings import chat_settings
from events.models import EventRecord, Stream
from events.types import EventName
from observability.models import AgentInteraction
from plan.models import ExecutionPlan
from prompt.models import WorkflowTemplate
from streaming.signals import wake
from tools.models import ToolExecution
from tools.ports import dispatcher
from tools.queries import pending_of
from tools.runs import TERMINAL, ClockTimestamp, RunStatus
from tools.services import forget_conversation, withdraw_approvals
from tools.units import Intervention, intervention
from workspaces.errors import NotVisible
from workspaces.models import User, Workspace

MAX_TEXT = 32_000  # characters
MAX_TITLE = 200
TITLE_FROM_TEXT = 60


@transaction.atomic
def create_conversation(
    *,
    user: User,
    workspace: Workspace,
    now: datetime,
    title: str = "",
    context_type: str = "",
    context_id: str = "",
    identity: str = "",
    idempotency: IdempotencyKey | None = None,
) -> Conversation:
    """Open a conversation with an agent.

    Args:
        user: whose it is; the caller has checked that he belongs to `workspace`.
        now: aware UTC time.
        title: up to 200 characters; empty: taken from the first message.
        context_type, context_id: what the conversation is about, for the history filter (CAP-042).
        identity: the agent's name; empty: the setting's.
        idempotency: remembers what was made, in the same commit.

    Raises:
        FieldInvalid: the title is too long.
    """
    _check_title(title)
    stream = Stream.objects.create(id=uuid.uuid4(), workspace=workspace)
    conversation = Conversation.objects.create(
        stream=stream,
        workspace=workspace,
        user=user,
        title=title.strip(),
        identity=identity or chat_settings().identity,
        context_type=context_type,
        context_id=context_id,
        created_at=now,
        updated_at=now,
    )
    _remember(idempotency, str(conversation.pk))
    return conversation


@transaction.atomic
def send_message(
    *,
    conversation_id: UUID,
    author: User,
    text: str,
    respond_async: bool,
    correlation_id: str,
    now: datetime,
    recipe: str = "",
    parent_id: int | Unset | None = UNSET,
    after_turn: int | Unset | None = UNSET,
    supersede: bool = False,
    idempotency: IdempotencyKey | None = None,
) -> Turn:
    """Take a person's message: the message and its turn are there when this commits, whatever happens next.

    Args:
        author: owns the conversation.
        text: 1 to 32,000 characters, not blank.
        respond_async: a worker runs the turn; else the caller does, and the sweep only if he never begins.
        correlation_id: of the request; it goes on every row of the turn.
        now: aware UTC time.
        recipe: layer 3 of the turn's prompt; its active version is pinned.
        parent_id: the message it goes on from, None for the conversation's beginning: another branch, such as an
            edited question makes. UNSET: the end of the active branch.
        after_turn: in place of `parent_id` the turn it comes after, also one that said nothing.
        supersede: end a turn that waits, and withdraw what it waits for, in place of being refused.
        idempotency: remembers what was made, in the same commit.

    Raises:
        NotVisible: no such conversation, or not the author's.
        FieldInvalid: the text is blank or too long, or there is no such place in the conversation.
        TurnActive: another turn has not ended.
        UnknownRecipe: no active recipe has that name.
    """
    _check_text(text)
    conversation = _locked(conversation_id, author, supersede=supersede)
    pinned = WorkflowTemplate.objects.resolve(recipe) if recipe else None
    after_id, last = place_for(conversation, parent_id=parent_id, after_turn=after_turn)
    turn = _new_turn(
        conversation, author=author, correlation_id=correlation_id, now=now, recipe=pinned, after_id=after_id
    )
    question = Message.objects.create(
        conversation=conversation, turn=turn, parent=last, role="user", text=text, round=0, created_at=now
    )
    _begin(conversation, turn, question, now=now, respond_async=respond_async, title_from=text)
    _remember(idempotency, str(turn.pk))
    return turn


@transaction.atomic
def regenerate(
    *,
    turn_id: int,
    author: User,
    respond_async: bool,
    correlation_id: str,
    now: datetime,
    idempotency: IdempotencyKey | None = None,
) -> Turn:
    """Answer a question once more: another turn beside the old one, which stays where it is.

    Args:
        turn_id: the turn whose question is asked again; it has ended.

    Raises:
        NotVisible: no such turn, or not the author's.
        TurnActive: a turn of the conversation has not ended.
    """
    old = Turn.objects.filter(pk=turn_id, user=author).first()
    if old is None or old.question_id is None:
        raise NotVisible(turn=turn_id)
    conversation = _locked(old.conversation_id, author)
    turn = _new_turn(conversation, author=author, correlation_id=correlation_id, now=now, after_id=old.after_id)
    Turn.objects.filter(pk=turn.pk).update(recipe=old.recipe, recipe_version=old.recipe_version)
    question = Message.objects.get(pk=old.question_id)
    _begin(conversation, turn, question, now=now, respond_async=respond_async, title_from=question.text)
    _remember(idempotency, str(turn.pk))
    return turn


@transaction.atomic
def select_branch(
    *,
    conversation_id: UUID,
    user: User,
    correlation_id: str,
    message_id: int | None = None,
    turn_id: int | None = None,
) -> Conversation:
    """Make the branch of a message or a turn the active one, down to its latest turn, and tell whoever watches.

    Args:
        correlation_id: of the request.
        message_id, turn_id: one of them; a turn may have no message of its own.

    Raises:
        NotVisible: no such conversation, or not the user's.
        FieldInvalid: neither or both are named, or it is not in the conversation.
        TurnActive: a turn has not ended.
    """
    if (message_id is None) == (turn_id is None):  # neither, or both
        raise FieldInvalid(field="turn_id", problem="or message_id names the branch: send one of them")
    conversation = _locked(conversation_id, user)
    if message_id is not None:
        said = Message.objects.filter(pk=message_id, conversation=conversation)
        chosen = said.values_list("turn_id", flat=True).first()
    else:
        assert turn_id is not None  # one of them is named
        chosen = Turn.objects.filter(pk=turn_id, conversation=conversation).values_list("pk", flat=True).first()
    if chosen is None:
        field = "turn_id" if message_id is None else "message_id"
        raise FieldInvalid(field=field, problem=f"is no {field.removesuffix('_id')} of this conversation")
    leaf = latest_below(chosen)
    if leaf != conversation.active_turn_id:
        Conversation.objects.filter(pk=conversation_id).update(active_turn=leaf)
        told = EventRecord(EventName.BRANCH_SELECTED, {"turn_id": leaf})
        Stream.objects.append(conversation_id, [told], correlation_id=correlation_id)
        transaction.on_commit(lambda: wake(conversation_id))
    return Conversation.objects.select_related("workspace").get(pk=conversation_id)


@transaction.atomic
def rename_conversation(*, conversation_id: UUID, user: User, title: str, now: datetime) -> Conversation:
    """Give a conversation another title.

    Raises:
        NotVisible: no such conversation, or not the user's.
        FieldInvalid: the title is blank or over 200 characters.
    """
    _check_title(title)
    if not title.strip():
        raise FieldInvalid(field="title", problem="may not be blank")
    if not Conversation.objects.filter(pk=conversation_id, user=user).update(title=title.strip(), updated_at=now):
        raise NotVisible(conversation=str(conversation_id))
    return Conversation.objects.select_related("workspace").get(pk=conversation_id)


@transaction.atomic
def delete_conversation(*, conversation_id: UUID, user: User) -> None:
    """Delete a conversation with its turns, messages, events and ended plans.

    The rows of lower rooms (interactions, tool executions) stay as a record without its key and its content.

    Raises:
        NotVisible: no such conversation, or not the user's.
        TurnActive: a turn has not ended.
        ConversationBusy: a plan has not ended.
    """
    conversation = _locked(conversation_id, user)
    plans = ExecutionPlan.objects.filter(stream_id=conversation.pk).exclude(status__in=TERMINAL)
    if running := list(plans.values_list("pk", flat=True)):
        raise ConversationBusy(plans=running)
    AgentInteraction.objects.filter(conversation_id=conversation.pk).update(conversation_id=None)
    forget_conversation(conversation_id=conversation.pk)
    Conversation.objects.filter(pk=conversation.pk).update(active_turn=None)
    Stream.objects.get(pk=conversation.pk).delete()


def cancel_turn(*, turn_id: int) -> Turn:
    """Ask a turn to stop; where no live owner could, end it here (design § 5 "Cancel").

    Args:
        turn_id: the caller has checked that its user may.

    Returns:
        The turn as it is now: ended, or running with the request noted.
    """
    with intervention(Turn, turn_id) as change:
        if not change.run.ended:
            Turn.objects.request_cancel(turn_id)
            if Turn.objects.cancel_orphans().filter(pk=turn_id).exists():
                end_from_outside(change, to=RunStatus.CANCELLED, stop_reason="cancelled", notice="Cancelled.")
    return Turn.objects.select_related("conversation").get(pk=turn_id)


def end_from_outside(
    change: Intervention[Turn], *, to: RunStatus, stop_reason: str, notice: str, error: str = ""
) -> bool:
    """End a turn that no owner will end, inside an open intervention; whether the arrow was taken."""
    turn = change.run
    open_states = [status for status in RunStatus if status not in TERMINAL]
    if not Turn.objects.move(
        turn.pk, frm=open_states, to=to, stop_reason=stop_reason, notice=notice, error=error[:2_000]
    ):
        return False
    withdraw_approvals(owner_kind="turn", owner_ids=[turn.pk], now=timezone.now(), events=change)
    ToolExecution.objects.lose_open("turn", [turn.pk])
    change.record(EventName.TURN_ENDED, **ended_payload(turn, to=to, stop_reason=stop_reason, notice=notice))
    return True


def ended_payload(
    turn: Turn, *, to: str, stop_reason: str, notice: str = "", plan_id: int | None = None
) -> dict[str, object]:
    """What the event `turn_ended` says."""
    return {
        "run": f"turn:{turn.pk}",
        "turn_id": turn.pk,
        "status": str(to),
        "stop_reason": stop_reason,
        "notice": notice,
        "plan_id": plan_id,
    }


def _locked(conversation_id: UUID, user: User, *, supersede: bool = False) -> Conversation:
    """The conversation, its stream locked and no turn under way; with `supersede`, one that waits is ended."""
    try:
        Stream.objects.lock(conversation_id)
    except Stream.DoesNotExist:
        raise NotVisible(conversation=str(conversation_id)) from None
    conversation = Conversation.objects.visible_to(user).filter(pk=conversation_id, user=user).first()
    if conversation is None:
        raise NotVisible(conversation=str(conversation_id))
    busy = active_turn(conversation_id)
    if busy is not None and supersede and _superseded(busy):
        busy = None
    if busy is not None:
        approvals = [approval.pk for approval in pending_of("turn", busy.pk)]
        raise TurnActive(turn_id=busy.pk, status=busy.status, approvals=approvals)
    return conversation


def _superseded(busy: Turn) -> bool:
    """End a turn that nobody runs; whether it was one."""
    with intervention(Turn, busy.pk) as change:
        if change.run.status not in (RunStatus.WAITING_APPROVAL, RunStatus.QUEUED):
            return False
        notice = "Superseded by the next message."
        return end_from_outside(change, to=RunStatus.CANCELLED, stop_reason="superseded", notice=notice)


def _new_turn(
    conversation: Conversation,
    *,
    author: User,
    correlation_id: str,
    now: datetime,
    after_id: int | None,
    recipe: WorkflowTemplate | None = None,
) -> Turn:
    return Turn.objects.create(
        workspace_id=conversation.workspace_id,
        stream_id=conversation.pk,
        correlation_id=correlation_id,
        status=Turn.READY,
        conversation=conversation,
        user=author,
        identity=conversation.identity,
        recipe=recipe.name if recipe else "",
        recipe_version=recipe.version if recipe else None,
        after_id=after_id,
        context_type=conversation.context_type,
        context_id=conversation.context_id,
        created_at=now,
    )


def _begin(
    conversation: Conversation, turn: Turn, question: Message, *, now: datetime, respond_async: bool, title_from: str
) -> None:
    """Make the turn the active one, say so on the stream, and have it run."""
    turn.question = question
    # The caller of a synchronous turn begins at once: for him it counts as dispatched, and the sweep stands by.
    told = {} if respond_async else {"dispatched_at": ClockTimestamp(), "dispatches": 1}
    Turn.objects.filter(pk=turn.pk).update(question=question, **told)
    columns = {"active_turn": turn, "updated_at": now}
    if not conversation.title:
        columns["title"] = _title_of(title_from)
    Conversation.objects.filter(pk=conversation.pk).update(**columns)
    queued = EventRecord(
        EventName.TURN_QUEUED,
        {
            "run": f"turn:{turn.pk}",
            "turn_id": turn.pk,
            "after_id": turn.after_id,
            "message_id": question.pk,
            "parent_id": question.parent_id,
            "text": question.text,
        },
    )
    Stream.objects.append(conversation.pk, [queued], correlation_id=turn.correlation_id)
    transaction.on_commit(lambda: wake(conversation.pk))
    if respond_async:
        dispatcher().dispatch_after_commit(turn)


def _remember(idempotency: IdempotencyKey | None, target: str) -> None:
    if idempotency is not None:
        IdempotencyKey.objects.filter(pk=idempotency.pk).update(target=target)


def _check_text(text: str) -> None:
    if not text.strip():
        raise FieldInvalid(field="text", problem="may not be blank")
    if len(text) > MAX_TEXT:
        raise FieldInvalid(field="text", problem=f"has {len(text)} characters, at most {MAX_TEXT} are taken")
    if "\x00" in text:
        raise FieldInvalid(field="text", problem="holds a NUL character")


def _check_title(title: str) -> None:
    if len(title) > MAX_TITLE:
        raise FieldInvalid(field="title", problem=f"has {len(title)} characters, at most {MAX_TITLE} are taken")


def _title_of(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TITLE_FROM_TEXT else f"{line[:TITLE_FROM_TEXT].rsplit(' ', 1)[0]}…"
