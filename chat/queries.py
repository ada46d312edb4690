"""Reads: conversations, their active branch, turns; each for one user, everything else is not visible."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet

from chat.models import Conversation, Message, Turn
from chat.numbers import whole_number
from plan.models import ExecutionPlan, PlanStep
from tools.queries import may_decide_about
from workspaces.errors import NotVisible
from workspaces.models import Membership, User, Workspace
from workspaces.permissions import VIEW_ALL, may


def conversations_of(user: User) -> QuerySet[Conversation]:
    """The user's own conversations in workspaces he still belongs to, the latest first."""
    return Conversation.objects.visible_to(user).filter(user=user).select_related("workspace").order_by("-updated_at")


def conversation_for(user: User, conversation_id: UUID) -> Conversation:
    """One conversation that the user may see: his own, one of whose calls he decides, or any where he may view all.

    Raises:
        NotVisible: there is none, or it is somebody else's.
    """
    found = Conversation.objects.visible_to(user).select_related("workspace", "user").filter(pk=conversation_id).first()
    if found is None or not (
        found.user_id == user.pk
        or may(user, VIEW_ALL, workspace=found.workspace_id)
        or may_decide_about(user, found.workspace_id, owner_kind="turn", conversation_id=found.pk)
    ):
        raise NotVisible(conversation=str(conversation_id))
    return found


def own_conversation(user: User, conversation_id: UUID) -> Conversation:
    """One conversation that the user may write to: his own alone.

    Raises:
        NotVisible: there is none, or it is somebody else's.
    """
    found = conversations_of(user).filter(pk=conversation_id).first()
    if found is None:
        raise NotVisible(conversation=str(conversation_id))
    return found


def turn_for(user: User, turn_id: int) -> Turn:
    """One turn that the user may see.

    Raises:
        NotVisible: there is none, or it is somebody else's.
    """
    found = Turn.objects.visible_to(user).select_related("conversation").filter(pk=turn_id).first()
    if found is None or not (
        found.user_id == user.pk
        or may(user, VIEW_ALL, workspace=found.workspace_id)
        or may_decide_about(user, found.workspace_id, owner_kind="turn", owner_id=turn_id)
    ):
        raise NotVisible(turn=turn_id)
    return found


def active_turn(conversation_id: UUID) -> Turn | None:
    """The turn that has not ended, if there is one."""
    return Turn.objects.open().filter(conversation_id=conversation_id).first()


def branch_of(turn_id: int | None) -> list[Turn]:
    """The turns that lead to a turn, oldest first, itself last."""
    if turn_id is None:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            f"""WITH RECURSIVE path(id, after_id, depth) AS (
                    SELECT id, after_id, 0 FROM {Turn._meta.db_table} WHERE id = %s
                    UNION ALL
                    SELECT t.id, t.after_id, p.depth + 1 FROM {Turn._meta.db_table} t JOIN path p ON t.id = p.after_id)
                SELECT id FROM path ORDER BY depth DESC""",  # noqa: S608
            [turn_id],
        )
        keys = [row[0] for row in cursor.fetchall()]
    turns = Turn.objects.in_bulk(keys)
    return [turns[key] for key in keys]


def latest_below(turn_id: int) -> int:
    """The latest turn of the branches that lead through a turn; itself when nothing follows."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""WITH RECURSIVE below(id) AS (
                    SELECT %s::bigint
                    UNION ALL
                    SELECT t.id FROM {Turn._meta.db_table} t JOIN below b ON t.after_id = b.id)
                SELECT max(id) FROM below""",  # noqa: S608
            [turn_id],
        )
        return int(cursor.fetchone()[0])


def siblings_of(messages: Sequence[Message]) -> dict[int, list[int]]:
    """By message: the keys of its alternatives, itself among them; edits of a question, tries of an answer."""
    asked = [row for row in messages if row.role == "user"]
    first = [row for row in messages if row.role == "assistant" and row.round == 1]
    parents = {row.parent_id for row in (*asked, *first)}
    found: dict[tuple[str, int | None], list[int]] = {}
    if messages:
        rows = Message.objects.filter(conversation_id=messages[0].conversation_id).filter(
            Q(parent_id__in=[key for key in parents if key is not None]) | Q(parent_id=None),
            Q(role="user") | Q(role="assistant", round=1),
        )
        for key, role, parent in rows.order_by("pk").values_list("pk", "role", "parent_id"):
            found.setdefault((role, parent), []).append(key)
    return {row.pk: found.get((row.role, row.parent_id), [row.pk]) for row in (*asked, *first)}


def messages_of(turns: Sequence[Turn]) -> list[Message]:
    """The messages of these turns in order, each new try led by the question it answers."""
    keys = [turn.pk for turn in turns]
    asked = {turn.question_id for turn in turns if turn.question_id is not None}
    rows = Message.objects.filter(Q(turn_id__in=keys) | Q(pk__in=asked)).order_by("turn_id", "round", "position")
    by_turn: dict[int, list[Message]] = {key: [] for key in keys}
    by_key: dict[int, Message] = {}
    for row in rows:
        by_key[row.pk] = row
        if row.turn_id in by_turn:
            by_turn[row.turn_id].append(row)
    ordered: list[Message] = []
    for turn in turns:
        own = by_turn[turn.pk]
        if turn.question_id is not None and all(row.pk != turn.question_id for row in own):
            ordered.append(by_key[turn.question_id])
        ordered.extend(own)
    return ordered


def transcript_of(conversation: Conversation) -> list[Message]:
    """The messages of the active branch, oldest first."""
    return messages_of(branch_of(conversation.active_turn_id))


def ended_plans(conversation_id: UUID, *, told: Collection[int] = (), limit: int = 5) -> list[dict[str, Any]]:
    """What became of the conversation's plans that ended, the latest first, short enough for a prompt.

    Args:
        told: keys of plans to leave out.
    """
    plans = ExecutionPlan.objects.filter(conversation_id=conversation_id, ended_at__isnull=False).exclude(pk__in=told)
    found = []
    for plan in plans.order_by("-ended_at")[:limit]:
        steps = [
            {
                "key": step.key,
                "status": step.status,
                **({"synthesis": _head(step.llm_synthesis)} if step.llm_synthesis else {}),
                **({"error": _head(step.error)} if step.error else {}),
            }
            for step in PlanStep.objects.filter(plan=plan).order_by("order")[:20]
        ]
        error = {"error": _head(plan.error)} if plan.error else {}
        found.append({"plan_id": plan.pk, "status": plan.status, "goal": _head(plan.goal), **error, "steps": steps})
    return found


def _head(text: str, characters: int = 400) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


def workspace_for(user: User, wanted: str | int | None) -> Workspace:
    """The workspace a new conversation belongs to, by key or slug; the user's only one when nothing is said.

    Raises:
        NotVisible: no such workspace, or the user is no member.
        LookupError: nothing was said and the user belongs to none or to several.
    """
    own = Membership.objects.filter(user=user, user__is_active=True).select_related("workspace")
    if wanted in (None, ""):
        memberships = list(own[:2])
        if len(memberships) != 1:
            raise LookupError("several" if memberships else "none")
        return memberships[0].workspace
    number = whole_number(str(wanted))
    key = Q(workspace__slug=str(wanted)) | (Q() if number is None else Q(workspace_id=number))
    membership = own.filter(key).first()
    if membership is None:
        raise NotVisible(workspace=str(wanted))
    return membership.workspace
