"""Frozen values of the policy layer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypedDict
from uuid import UUID

from events.models import EventRecord
from events.ports import EventSink
from events.types import EventName
from prompt.types import AgentIdentity, ApprovalPolicy, Mode
from workspaces.models import User, Workspace

Effect = Literal["read", "write", "external"]
OwnerKind = Literal["turn", "step", "call"]


class Envelope(TypedDict):
    """What every call answers, and all it answers (CAP-031)."""

    success: bool
    result: Any
    error: str | None


def idempotency_key(owner_kind: OwnerKind, owner_id: int, round: int, position: int) -> str:  # noqa: A002
    """The key of a call, the same at every re-run: 64 hex digits made from the call's identity."""
    return hashlib.sha256(f"{owner_kind}:{owner_id}:{round}:{position}".encode()).hexdigest()


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
        snapshot_is_summary: the prompt holds a summary in place of the whole snapshot, so search tools are accepted.
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
    snapshot_is_summary: bool = False

    @property
    def scope_id(self) -> str:
        return self.workspace.scope_id


class UnitOfWork(Protocol):
    """What a call needs of the open unit it runs in; `tools.units.Unit` is one."""

    events: list[EventRecord]

    def record(self, name: EventName, **payload: Any) -> None:
        """Write an event when the unit ends."""
        ...

    def bump(self, workspace_id: int) -> None:
        """Rows of this workspace were written."""
        ...


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of one call, validated.

    Args:
        values: by parameter name, of the types the tool's annotations say.
        stored: the same as the model sent them, as plain JSON, without what the server sets.
        dropped: names the model sent that only the server sets (CAP-036).
    """

    values: Mapping[str, Any]
    stored: dict[str, Any]
    dropped: tuple[str, ...] = ()


class Signature(Protocol):
    """How a tool takes its arguments: a Python function's own, or a remote tool's schema."""

    def parse(self, arguments: Mapping[str, Any]) -> Arguments:
        """Validate what the model sent.

        Raises:
            InvalidArguments: names the fields that do not fit.
        """
        ...

    def call(self, fn: Callable[..., Any], values: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the tool with typed values and what the server injects."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A registered tool (CAP-030).

    Args:
        name: unique; what the model calls.
        fn: the plain typed function.
        effect: `read`, `write` (rows in PostgreSQL) or `external` (the world outside).
        signature: validates arguments and calls `fn` with them.
        permission: `app_label.codename`; a write or external tool has one.
        destructive: always waits for a person (CAP-033).
        approval: when a person is asked: never, for every call, once a turn, once a conversation.
        chat: offered in conversation mode though it only reads (CAP-039); `summary`: only while the snapshot is one.
        timeout_s: wall clock of one call, seconds.
        idempotent: may be repeated after a crash.
        probe: asks the outside world whether a call happened; called with the context and the stored arguments,
            answers the result, or None when it did not happen.
        summary: a sentence about one call, for the approver: a format string over the arguments, or a function.
        handoff: ends the turn when it succeeds (`create_plan`, CAP-044).
        domain: it writes rows that snapshots show, so they are stale afterwards (CAP-038).
        granted: a person has approved this very tool for its workspace, so a pattern of a tool set may name it (MCP).
    """

    name: str
    fn: Callable[..., Any]
    effect: Effect
    description: str
    input_schema: Mapping[str, Any]
    signature: Signature
    permission: str | None = None
    destructive: bool = False
    approval: ApprovalPolicy = "never"
    chat: bool | Literal["summary"] = False
    timeout_s: float = 30.0
    idempotent: bool = False
    probe: Callable[..., Any] | None = None
    label: str = ""
    summary: Callable[..., str] | str | None = None
    handoff: bool = False
    domain: bool = True
    granted: bool = False
