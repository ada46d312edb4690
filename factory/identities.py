"""Who the agents are: frozen values, one a persona (CAP-121)."""

from __future__ import annotations

from django.apps import apps
from django.conf import settings

from factory.errors import UnknownIdentity
from prompt.types import AgentIdentity, Limits
from tools.registry import registry

PLANNER = "planner"
MCP_TOOLS = "mcp__*"  # those that people have approved in the workspace
FIELD = "field"

_PLANNER_TONE = (
    "You are the team's engineering analyst. You know their repositories through the tools you are given and through"
    " the snapshot in the newest message. Answer shortly and concretely, name the elements you speak of by their keys,"
    " and say so when the data does not tell."
)
_FIELD_TONE = "You are a careful extractor. You answer with JSON alone, no prose around it."


def domain_tools() -> frozenset[str]:
    """The names of all tools that the domain apps of `CAPSTAN_DOMAIN_APPS` bring, with `create_plan` beside them."""
    domain = {apps.get_app_config(f"capstan_{name}").name for name in settings.DOMAIN_APPS}
    return frozenset(spec.name for spec in registry() if spec.fn.__module__.split(".")[0] in domain) | {
        spec.name for spec in registry() if spec.fn.__module__.split(".")[0] in {"plan", "tools"}
    }


def identities() -> dict[str, AgentIdentity]:
    """Every agent by name; the settings `CAPSTAN_LIMITS` and `CAPSTAN_APPROVALS` say more about those they name."""
    limits = getattr(settings, "CAPSTAN_LIMITS", {})

    def limited(name: str) -> Limits:
        return Limits(**limits.get(name, {}))

    return {
        PLANNER: AgentIdentity(
            name=PLANNER,
            system_tone=_PLANNER_TONE,
            allowed_tools=domain_tools() | {MCP_TOOLS},
            model_tier="execution",
            limits=limited(PLANNER),
            blackboard=True,
            approvals=getattr(settings, "CAPSTAN_APPROVALS", {}).get(PLANNER, {}),
        ),
        FIELD: AgentIdentity(name=FIELD, system_tone=_FIELD_TONE, model_tier="planning", limits=limited(FIELD)),
    }


def identity(name: str) -> AgentIdentity:
    """The agent called `name`.

    Raises:
        UnknownIdentity: there is none; the details list those there are.
    """
    known = identities()
    if name not in known:
        raise UnknownIdentity(identity=name, known=sorted(known))
    return known[name]
