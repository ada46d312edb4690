"""Who is offered which tool, and the guard on writes (CAP-032, CAP-039; design § 5 "Exposure")."""

from __future__ import annotations

from fnmatch import fnmatchcase

from prompt.types import AgentIdentity, Mode
from tools.registry import Registry
from tools.types import ToolContext, ToolSpec

NAME_CHARACTERS = 64


def exposed(registry: Registry, identity: AgentIdentity, *, mode: Mode) -> frozenset[str]:
    """The names an identity is offered: in workflow all of its own, in conversation the writes and what is for chat.

    An entry of `allowed_tools` with `*` stands for reads, and for what a person has granted to the workspace: a write
    of ours is named in full (CAP-032).
    """
    return frozenset(
        spec.name
        for spec in registry
        if allowed(spec, identity)
        and (mode == "workflow" or not identity.dual_exposure or spec.effect != "read" or spec.chat)
    )


def allowed(spec: ToolSpec, identity: AgentIdentity) -> bool:
    """Whether the identity's tool set names the tool; deny by default (CAP-032)."""
    if spec.name in identity.allowed_tools:
        return True
    return (spec.effect == "read" or spec.granted) and any(
        "*" in pattern and fnmatchcase(spec.name, pattern) for pattern in identity.allowed_tools
    )


def refusal(
    name: str, spec: ToolSpec | None, offered: frozenset[str], context: ToolContext, *, mode: Mode
) -> str | None:
    """Why a call is not exposed, or None when it is."""
    shown = name[:NAME_CHARACTERS]
    if spec is None:
        return f"unknown tool {shown!r}"
    if name not in offered:
        return f"tool {shown!r} not exposed in {mode} mode"
    if mode == "conversation" and spec.chat == "summary" and not context.snapshot_is_summary:
        return f"tool {shown!r} not exposed in {mode} mode while the snapshot is complete; it is in the newest message"
    return None


def guarded(spec: ToolSpec, identity: AgentIdentity) -> str | None:
    """Why the write guard refuses, or None: who calls must be allowed this very write (CAP-032)."""
    if spec.effect == "read" or allowed(spec, identity):
        return None
    return f"the write guard refuses {spec.name!r}: {identity.name!r} may not write with it"
