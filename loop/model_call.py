"""One model call with its clock and its record (CAP-101)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llm.errors import LLMError
from llm.ports import BaseLLM, CancelToken
from llm.types import LLMResponse, ModelEvent, ModelRequest, TextDelta, ThinkingDelta, ToolCallDelta, Usage
from observability.services import record_interaction
from observability.types import CallOwner, Interaction
from tools.units import release_connection

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelCaller:
    """Calls a model for a run: no connection held meanwhile, its facts measured, a failed call on record.

    Args:
        owner: whom the calls belong to.
        tier: for the record.
        on_event: gets (round, model event) as they come; None: answers are not streamed.
    """

    llm: BaseLLM
    owner: CallOwner
    tier: str
    cancel: CancelToken
    on_event: Callable[[int, ModelEvent], None] | None = None

    def call(self, request: ModelRequest, *, round_number: int) -> tuple[LLMResponse, Interaction]:
        """The answer and its facts.

        Raises:
            LLMError: after its row was written, with what had been used.
        """
        began = time.monotonic()
        first: list[int] = []

        def heard(event: ModelEvent) -> None:
            if not first and isinstance(event, TextDelta | ThinkingDelta | ToolCallDelta):
                first.append(_ms_since(began))
            if self.on_event is not None:
                self.on_event(round_number, event)

        release_connection()
        try:
            response = self.llm.call(request, on_event=heard if self.on_event else None, cancel=self.cancel)
        except LLMError as exc:
            partial = exc.partial or LLMResponse(content="")
            facts = self._facts(partial, round_number=round_number, began=began, first=first)
            record_interaction(replace(facts, stop_reason="", error_code=exc.code, committed=False))
            raise
        return response, self._facts(response, round_number=round_number, began=began, first=first)

    def _facts(self, response: LLMResponse, *, round_number: int, began: float, first: list[int]) -> Interaction:
        usage: Usage = response.usage
        return Interaction(
            owner=self.owner,
            round=round_number,
            provider=self.llm.provider,
            model=response.model or self.llm.model_id,
            tier=self.tier,
            latency_ms=_ms_since(began),
            first_token_ms=first[0] if first else None,
            input_tokens=usage.get("input_tokens"),
            output_tokens=usage.get("output_tokens"),
            cache_read_tokens=usage.get("cache_read_tokens"),
            cache_write_tokens=usage.get("cache_write_tokens"),
            reasoning_tokens=usage.get("reasoning_tokens"),
            stop_reason=response.stop_reason,
        )


@contextmanager
def keep_paid(facts: Interaction) -> Iterator[None]:
    """Around the unit that stores an answer: when it does not commit, what the answer cost stays on record."""
    try:
        yield
    except BaseException as exc:
        record_unkept(facts, exc)
        raise


def record_unkept(facts: Interaction, exc: BaseException) -> None:
    """Write the row of a call whose round did not commit because of `exc`."""
    code = getattr(exc, "code", type(exc).__name__)
    try:
        record_interaction(replace(facts, error_code=str(code)[:64], committed=False))
    except Exception:  # the failure at hand is the one to report
        logger.exception("the interaction of an uncommitted round could not be recorded")


def _ms_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
