"""What an assessment step leaves: an outcome read from the model's answer (CAP-080)."""

from __future__ import annotations

from typing import Any

from llm.structured import extract_json_object
from plan.errors import OutcomeInvalid

INSTRUCTION = (
    "Assess the work above. End with one JSON object and nothing after it: "
    '{"assessment": "...", "satisfaction": 1 to 5, "suggestion": "..."}.'
)


def outcome_of(text: str) -> dict[str, Any]:
    """The outcome in an assessment step's answer.

    Raises:
        OutcomeInvalid: no such object, or satisfaction is no whole number from 1 to 5.
    """
    found = extract_json_object(text)
    if found is None:
        raise OutcomeInvalid(problem="no JSON object in the answer")
    satisfaction = found.get("satisfaction")
    if isinstance(satisfaction, bool) or not isinstance(satisfaction, int) or not 1 <= satisfaction <= 5:
        raise OutcomeInvalid(problem="satisfaction must be a whole number from 1 to 5", satisfaction=satisfaction)
    assessment, suggestion = found.get("assessment"), found.get("suggestion", "")
    if not isinstance(assessment, str) or not assessment.strip() or not isinstance(suggestion, str):
        raise OutcomeInvalid(problem="assessment and suggestion must be texts")
    return {"assessment": assessment.strip(), "satisfaction": satisfaction, "suggestion": suggestion.strip()}
