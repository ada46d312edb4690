"""Frozen values of the policy layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict
from uuid import UUID

from events.ports import EventSink
from prompt.types import AgentIdentity, Mode
from workspaces.models import User, Workspace

Effect = Literal["read", "write", "external"]
OwnerKind = Literal["turn", "step", "call"]


class Envelope(TypedDict):
    """What every call answers, and all it answers (CAP-031)."""

    success: bool
    result: Any
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Who calls, for whom and from where; set by the server, hidden from the model (CAP-036).

    Args:
        user: the requester; permissions are his, checked when the call runs.
        workspace: the tenant that everything the tool touches belongs to.
        owner_kind, owner_id: the run's row: a turn, a step, or a call made at another door.
        round, position: the call's identity within its owner; with it they make the ledger key.
        idempotency_key: stable across crashes and re-runs of the same call; hand it to external services.
        now: aware UTC time at which the call began.
        events: where a write tool records events; None outside a unit.
        ports: what the composition root filled in for tools of upper rooms, by name.
    """

    user: User
    workspace: Workspace
    identity: AgentIdentity
    mode: Mode
    owner_kind: OwnerKind
    owner_id: int
    round: int
    position: int
    correlation_id: str
    idempotency_key: str
    now: datetime
    conversation_id: UUID | None = None
    turn_id: int | None = None
    plan_id: int | None = None
    step_id: int | None = None
    stream_id: UUID | None = None
    events: EventSink | None = None
    ports: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scope_id(self) -> str:
        return self.workspace.scope_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A registered tool (CAP-030).

    Args:
        name: unique; what the model calls.
        fn: the plain typed function.
        effect: `read`, `write` (rows in PostgreSQL) or `external` (the world outside).
        permission: `app_label.codename`; a write or external tool has one.
        destructive: always waits for a person (CAP-033).
        chat: offered in conversation mode though it only reads (CAP-039).
        timeout_s: wall clock of one call, seconds.
        idempotent: may be repeated after a crash.
        handoff: ends the turn when it succeeds (`create_plan`, CAP-044).
    """

    name: str
    fn: Callable[..., Any]
    effect: Effect
    description: str
    input_schema: Mapping[str, Any]
    permission: str | None = None
    destructive: bool = False
    approval: str = "never"
    chat: bool = False
    timeout_s: float = 30.0
    idempotent: bool = False
    probe: Callable[..., Any] | None = None
    label: str = ""
    summary: Callable[..., str] | str | None = None
    handoff: bool = False
