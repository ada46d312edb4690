"""The field agent: one model call in, structured candidates out (CAP-009, T-02)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from factory.errors import ExtractError
from factory.identities import FIELD
from factory.identities import identity as named_identity
from factory.tiers import build_llm
from llm.errors import LLMError
from llm.ports import BaseLLM
from llm.structured import extract_json_array
from llm.types import LLMMessage, LLMResponse, ModelRequest, SystemBlock
from observability.services import record_interaction
from observability.types import CallOwner, Interaction
from prompt.builder import PromptBuilder
from prompt.types import AgentIdentity, Tier
from prompt.validate import validate
from tools.units import release_connection

MAX_TOKENS = 16_000


@dataclass(frozen=True, slots=True)
class FieldAgent:
    """Extracts candidates from one input with one call; no loop, no tools.

    Args:
        owner: whose call it is, for the interaction row; None leaves no row.
        instructions: what to extract and how to answer; a stable layer of the prompt.
        validators: names registered in `prompt.validate`, given each input as `text` before it costs a model call.
    """

    identity: AgentIdentity
    llm: BaseLLM
    tier: Tier
    owner: CallOwner | None = None
    instructions: str = ""
    validators: tuple[str, ...] = ("non_blank_text",)

    def extract_candidates(self, snapshot: str) -> list[dict[str, Any]]:
        """The objects of the JSON array that the model answered.

        Args:
            snapshot: the input, as text.

        Raises:
            InputInvalid: a validator refused the input; no model was called.
            ExtractError: the answer holds no JSON array of objects, or was cut.
            LLMError: the call failed.

        Source: CAP-009, CAP-023.
        """
        validate(self.validators, {"text": snapshot})
        system = [*PromptBuilder().with_identity(self.identity).build()]
        if self.instructions:
            system.append(SystemBlock(text=self.instructions, cache=True))
        request = ModelRequest(
            messages=(LLMMessage(role="user", content=snapshot),), system=system, max_tokens=MAX_TOKENS
        )
        response = self._call(request)
        if response.stop_reason != "end_turn":
            raise ExtractError(reason=f"the answer ended with {response.stop_reason}")
        items = extract_json_array(response.content)
        if items is None:
            raise ExtractError(reason="no JSON array in the answer", characters=len(response.content))
        return items

    def _call(self, request: ModelRequest) -> LLMResponse:
        release_connection()
        started = time.monotonic()
        try:
            response = self.llm.call(request)
        except LLMError as exc:
            self._record(started, None, exc.code)
            raise
        self._record(started, response, "")
        return response

    def _record(self, started: float, response: LLMResponse | None, error: str) -> None:
        if self.owner is None:
            return
        usage = response.usage if response else {}
        record_interaction(
            Interaction(
                owner=self.owner,
                round=1,
                provider=self.llm.provider,
                model=(response.model if response else "") or self.llm.model_id,
                tier=self.tier,
                latency_ms=int((time.monotonic() - started) * 1000),
                input_tokens=usage.get("input_tokens"),
                output_tokens=usage.get("output_tokens"),
                cache_read_tokens=usage.get("cache_read_tokens"),
                cache_write_tokens=usage.get("cache_write_tokens"),
                reasoning_tokens=usage.get("reasoning_tokens"),
                stop_reason=response.stop_reason if response else "",
                error_code=error,
            )
        )


def create_field_agent(
    *,
    llm: BaseLLM | None = None,
    identity: AgentIdentity | str = FIELD,
    owner: CallOwner | None = None,
    instructions: str = "",
    validators: tuple[str, ...] = ("non_blank_text",),
) -> FieldAgent:
    """Wire a field agent on its identity's tier (CAP-120).

    Args:
        llm: the model; None builds the tier's.
        owner: whose calls they are, for the record.
        instructions: what to extract and how to answer.
        validators: what each input must pass before the model is asked.

    Raises:
        UnknownIdentity: no agent has that name.
    """
    who = named_identity(identity) if isinstance(identity, str) else identity
    return FieldAgent(
        identity=who,
        llm=llm or build_llm(tier=who.model_tier, patient=True),
        tier=who.model_tier,
        owner=owner,
        instructions=instructions,
        validators=validators,
    )
