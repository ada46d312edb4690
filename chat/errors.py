"""What `chat` raises."""

from __future__ import annotations

from workspaces.errors import CapstanError


class ChatError(CapstanError):
    """Root of what `chat` raises."""


class TurnActive(ChatError):
    """The conversation is still busy with a turn; the detail `turn_id` names it, `approvals` what it waits for."""

    code = "turn.active"


class ConversationBusy(ChatError):
    """Plans of the conversation have not ended; the detail `plans` names them."""

    code = "conversation.busy"


class QuestionTooLarge(ChatError):
    """The question alone is larger than the window of history that a request may hold."""

    code = "chat.question_too_large"


class NoMember(ChatError):
    """The author was deactivated, or left the workspace, while the turn ran."""

    code = "chat.no_member"


class FieldInvalid(ChatError):
    """A field of the request cannot be used; the detail `field` names it, `problem` says why."""

    code = "invalid"


class IdempotencyMismatch(ChatError):
    """This Idempotency-Key was used before with another request; take a new key."""

    code = "idempotency.mismatch"


class IdempotencyInProgress(ChatError):
    """A request with this Idempotency-Key is still being answered; send it again later."""

    code = "idempotency.in_progress"
