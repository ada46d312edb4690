"""The plan templates that domain apps bring; registered in their `agent_tools.py` (CAP-050)."""

from __future__ import annotations

from plan.errors import UnknownTemplate
from plan.types import PlanTemplate

_templates: dict[str, PlanTemplate] = {}


def register_template(template: PlanTemplate) -> PlanTemplate:
    """Make a template known.

    Raises:
        ValueError: another template has that id.
    """
    known = _templates.get(template.id)
    if known is not None and known != template:
        raise ValueError(f"two plan templates are called {template.id!r}")
    _templates[template.id] = template
    return template


def template(template_id: str) -> PlanTemplate:
    """The template of that id.

    Raises:
        UnknownTemplate: there is none; the details list those there are.
    """
    try:
        return _templates[template_id]
    except KeyError:
        raise UnknownTemplate(template=template_id, known=sorted(_templates)) from None


def templates() -> dict[str, PlanTemplate]:
    """Every template by id."""
    return dict(_templates)
