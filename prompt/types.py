"""Frozen values that a prompt is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

Mode = Literal["conversation", "workflow"]
Tier = Literal["planning", "execution", "field"]
ApprovalPolicy = Literal["never", "call", "turn", "conversation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far one turn or step of an identity may go (CAP-043).

    Args:
        iterations: model calls.
        tool_calls: in all.
        turn_seconds, step_seconds: wall clock.
        tokens: input and output together; None: no limit.
        cost_usd: None: no limit.
        same_call: how often the same (tool, arguments) may be asked for.
        parallel_reads: reads of one message that run side by side.
        max_output_tokens: of one model call.
    """

    iterations: int = 10
    tool_calls: int = 20
    turn_seconds: float = 300.0
    step_seconds: float = 600.0
    tokens: int | None = None
    cost_usd: Decimal | None = None
    same_call: int = 3
    parallel_reads: int = 4
    max_output_tokens: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """Who an agent is: data, not a subclass (CAP-121).

    Args:
        name: unique; what API and admin call it.
        system_tone: layer 2 of the prompt.
        allowed_tools: names; writes outside it are refused (CAP-032).
        model_tier: which tier answers.
        limits: how far one run may go.
        blackboard: keeps a board of soft intent between its turns (CAP-070).
        dual_exposure: False for a tiny domain that may read in chat (design § 5 "Exposure").
        approvals: by tool, when a person is asked, in place of what the tool says (CAP-033).
    """

    name: str
    system_tone: str
    allowed_tools: frozenset[str] = frozenset()
    model_tier: Tier = "execution"
    limits: Limits = field(default_factory=Limits)
    dual_exposure: bool = True
    blackboard: bool = False
    approvals: Mapping[str, ApprovalPolicy] = field(default_factory=dict, hash=False)
