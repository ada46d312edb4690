"""The event catalogue: every durable event that a client can receive, by name (CAP-100)."""

from __future__ import annotations

from enum import StrEnum


class EventName(StrEnum):
    """Names on the wire. `token` and `round_restarted` are live signals and have no row."""

    TURN_QUEUED = "turn_queued"
    TYPING = "typing"
    TOOL_START = "tool_start"
    TOOL_END = "tool_end"
    AI_MESSAGE = "ai_message"
    TURN_ENDED = "turn_ended"
    PLAN_CREATED = "plan_created"
    PLAN_ADAPTED = "plan_adapted"
    PLAN_STEP = "plan_step"
    PLAN_COMPLETED = "plan_completed"
    PLAN_FAILED = "plan_failed"
    PLAN_CANCELLED = "plan_cancelled"
    RATE_LIMIT = "rate_limit"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_DECIDED = "approval_decided"
    BLACKBOARD = "blackboard"
    BRANCH_SELECTED = "branch_selected"
