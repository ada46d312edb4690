"""What `plan` raises."""

from __future__ import annotations

from workspaces.errors import CapstanError


class PlanError(CapstanError):
    """Root of what `plan` raises."""


class PlanInvalid(PlanError):
    """The plan as asked for cannot be held; the detail `problems` lists everything that is wrong with it."""

    code = "plan.invalid"


class UnknownTemplate(PlanError):
    """No plan template has this id."""

    code = "plan.unknown_template"


class SynthesisQualityError(PlanError):
    """An LLM step ended without a synthesis that one of its own model rounds produced (CAP-054, PRF-SC01-06)."""

    code = "plan.synthesis_quality"


class OutcomeInvalid(PlanError):
    """An assessment step's answer holds no outcome: a JSON object with assessment, satisfaction and suggestion."""

    code = "plan.outcome_invalid"


class ReferenceMissing(PlanError):
    """An argument's `$from` names a value that the earlier step did not leave."""

    code = "plan.reference_missing"


class PlanConflict(PlanError):
    """The plan's state does not allow this; the detail `status` says which state it is in."""

    code = "plan.conflict"


class NotAdaptable(PlanError):
    """The plan, or its template, does not let this user change its steps."""

    code = "plan.not_adaptable"
