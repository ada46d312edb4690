"""The bounded ReAct loop: one for chat turns and for LLM steps of plans (CAP-040, CAP-043, CAP-044)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from llm.errors import LLMCancelled, LLMTimeout
from llm.ports import BaseLLM, CancelToken
from llm.types import LLMMessage, LLMResponse, ModelEvent, ModelRequest, SystemBlock
from loop.model_call import ModelCaller, record_unkept
from loop.ports import LoopOutcome, PlanCreated, StoredCall, Transcript
from loop.rounds import CallRound, Reply, RoundEnd, key_of, store_reply
from loop.settings import loop_settings
from observability.cost import estimate_cost
from observability.crashpoints import crash_point
from observability.types import Interaction
from prompt.types import Limits
from tools.executor import ToolExecutor
from tools.units import Unit, rerun

logger = logging.getLogger(__name__)

FINAL_NOTE = "The limit of this run is reached ({reason}). Give your final answer now, from what you have; no tools."
LIMITS = {
    "iterations": "The answer was asked for after {limit} rounds.",
    "tool_calls": "The answer was asked for after {limit} tool calls.",
    "wall_clock": "The time for this answer was over.",
    "tokens": "The token budget of this answer was used up.",
    "cost": "The cost budget of this answer was used up.",
    "cost_unknown": "The model's price is unknown, so a cost budget cannot be kept: set CAPSTAN_PRICES.",
}
NOTICES = {
    "max_tokens": "The answer was cut off at its length limit.",
    "context_full": "The answer was cut off: the conversation fills the model's window.",
    "refusal": "The model declined to answer.",
    "empty": "The model gave an empty answer.",
}


@dataclass(slots=True)
class _Progress:
    """What the run has used; read once from the journal, then carried along."""

    rounds: int
    calls: list[tuple[str, str]]
    tokens: int
    cost: Decimal | None
    tool_names: list[str] = field(default_factory=list)

    def limit(self, limits: Limits, *, deadline: float) -> str:
        """Which limit is reached; empty: none."""
        if time.monotonic() >= deadline:
            return "wall_clock"
        if self.rounds >= limits.iterations:
            return "iterations"
        if len(self.calls) >= limits.tool_calls:
            return "tool_calls"
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return "tokens"
        if limits.cost_usd is not None and self.cost is None:
            return "cost_unknown"
        if limits.cost_usd is not None and self.cost is not None and self.cost >= limits.cost_usd:
            return "cost"
        return ""

    def count(self, interaction: Interaction, *, priced: bool) -> None:
        self.tokens += (interaction.input_tokens or 0) + (interaction.output_tokens or 0)
        if not priced:
            return
        cost, _source = estimate_cost(
            provider=interaction.provider,
            model=interaction.model,
            input_tokens=interaction.input_tokens,
            output_tokens=interaction.output_tokens,
            cache_read_tokens=interaction.cache_read_tokens,
            cache_write_tokens=interaction.cache_write_tokens,
        )
        self.cost = None if cost is None or self.cost is None else self.cost + cost


def bounded_react_loop(
    *,
    llm: BaseLLM,
    executor: ToolExecutor,
    transcript: Transcript,
    system: Sequence[SystemBlock],
    limits: Limits,
    tier: str,
    max_output_tokens: int | None = None,
    thinking_tokens: int = 0,
    on_event: Callable[[int, ModelEvent], None] | None = None,
    cancel: CancelToken | None = None,
    deadline: float,
    on_plan_created: PlanCreated | None = None,
) -> LoopOutcome:
    """Ask the model and run its calls until it answers, hands over to a plan, waits for a person or meets a limit.

    It goes on from the transcript's journal: a reply already stored is not asked for again.

    Args:
        system: layers 1 to 3.
        limits: past one the model is asked once more, without tools, for its final answer.
        tier: for the record.
        max_output_tokens: of one model call; None: the limits' value.
        thinking_tokens: a reasoning budget a call, 0 for none.
        on_event: gets (round, model event) as they come; None: the answer is not streamed.
        cancel: ends the model call, and the run before its next one.
        deadline: `time.monotonic()` past which the final answer is asked for.
        on_plan_created: given a new plan's id, what the run says about it; the run then ends without a model call.

    Raises:
        LLMError: a model call failed; its row is written. `LLMCancelled` after a cancel, with what had arrived.
        LeaseLost: the run is somebody else's by now; what was paid for is on record.

    Source: CAP-040, CAP-043, CAP-044.
    """
    cancel = cancel or CancelToken()
    caller = ModelCaller(llm=llm, owner=transcript.owner, tier=tier, cancel=cancel, on_event=on_event)
    journal = transcript.journal()
    before = journal.calls[: len(journal.calls) - len(journal.open_calls)]
    progress = _Progress(journal.rounds, list(journal.calls), journal.tokens, journal.cost_usd)

    def run_calls(calls: Sequence[StoredCall], *, earlier: Sequence[tuple[str, str]], reply: Reply | None) -> RoundEnd:
        return CallRound(transcript, executor, limits, progress.rounds, earlier, on_plan_created).run(
            calls, reply=reply
        )

    if journal.open_calls:
        end = run_calls(journal.open_calls, earlier=before, reply=None)
        if end.status != "open":
            return _outcome(end, progress)
    while True:
        _stop_if_cancelled(cancel, {"cancel", "lease_lost", "deadline", "shutdown", "handover"})
        reason = progress.limit(limits, deadline=deadline)
        note = FINAL_NOTE.format(reason=reason.replace("_", " ")) if reason else ""
        request = _request(
            transcript.messages(),
            system=tuple(system),
            executor=executor,
            note=note,
            max_tokens=max_output_tokens or limits.max_output_tokens,
            thinking_tokens=0 if note else thinking_tokens,
            seconds=deadline - time.monotonic(),
        )
        try:
            response, facts = caller.call(request, round_number=progress.rounds + 1)
        except LLMTimeout:
            if reason or time.monotonic() < deadline - 0.5:
                raise
            continue  # the run's time is over, not the provider's: ask for the final answer
        crash_point("loop.answered")
        progress.rounds += 1
        progress.count(facts, priced=limits.cost_usd is not None)
        reply = Reply(_without_calls(response) if note else response, facts, note)
        try:
            _stop_if_cancelled(cancel, {"cancel", "lease_lost"}, partial=response)
            if reply.response.tool_calls:
                calls = [StoredCall(call, n, None) for n, call in enumerate(reply.response.tool_calls, start=1)]
                earlier = tuple(progress.calls)
                progress.calls.extend(key_of(stored) for stored in calls)
                progress.tool_names.extend(stored.call["name"] for stored in calls)
                end = run_calls(calls, earlier=earlier, reply=reply)
            else:
                end = _answer(transcript, progress.rounds, reply, reason=reason, limits=limits)
        except BaseException as exc:
            if not reply.committed:
                record_unkept(facts, exc)
                if isinstance(exc, LLMCancelled) and exc.partial is None:
                    exc.partial = response
            raise
        if end.status != "open":
            return _outcome(end, progress, reason=_stop_reason(reply.response, reason))
        crash_point("loop.round_committed")


def _request(
    messages: Sequence[LLMMessage],
    *,
    system: tuple[SystemBlock, ...],
    executor: ToolExecutor,
    note: str,
    max_tokens: int,
    thinking_tokens: int,
    seconds: float,
) -> ModelRequest:
    told = (*messages, LLMMessage("user", note)) if note else tuple(messages)
    return ModelRequest(
        messages=told,
        system=system,
        tools=tuple(executor.schemas()),
        tool_choice="none" if note else "auto",
        max_tokens=max_tokens,
        thinking_tokens=thinking_tokens,
        deadline_s=max(seconds, loop_settings().final_answer_s) if note else max(seconds, 1.0),
    )


def _without_calls(response: LLMResponse) -> LLMResponse:
    """A final answer makes no calls, whatever the model did where the wire has no `tool_choice: none`."""
    if not response.tool_calls:
        return response
    return replace(response, tool_calls=None, blocks=None, stop_reason="end_turn")


def _stop_reason(response: LLMResponse, limit: str) -> str:
    if limit:
        return limit
    if not response.content.strip() and response.stop_reason in {"end_turn", "stop_sequence", "tool_use"}:
        return "empty"
    return response.stop_reason


def _answer(transcript: Transcript, number: int, reply: Reply, *, reason: str, limits: Limits) -> RoundEnd:
    """The reply is the answer: store it and end the run in one commit."""
    text, stop = reply.response.content, _stop_reason(reply.response, reason)
    own = _stop_reason(reply.response, "")
    limit = {"iterations": limits.iterations, "tool_calls": limits.tool_calls}.get(reason, 0)
    parts = [LIMITS[reason].format(limit=limit)] if reason else []
    parts += [NOTICES[own]] if own in NOTICES else []

    def body(unit: Unit) -> RoundEnd:
        store_reply(transcript, unit, round_number=number, reply=reply)
        if reply.response.stop_reason == "pause" and not reply.note:
            return RoundEnd("open")  # the provider asks us to go on
        transcript.finish(unit, text=text, stop_reason=stop, notice=" ".join(parts))
        return RoundEnd("ended", text=text)

    return rerun(transcript.unit, body)


def _outcome(end: RoundEnd, progress: _Progress, *, reason: str = "") -> LoopOutcome:
    if end.status == "parked":
        reason = "approval"
    elif end.plan_id is not None:
        reason = "plan_created"
    return LoopOutcome(
        status=end.status,
        text=end.text,
        stop_reason=reason,
        plan_id=end.plan_id,
        rounds=progress.rounds,
        tool_names=tuple(progress.tool_names),
    )


def _stop_if_cancelled(cancel: CancelToken, reasons: set[str], partial: LLMResponse | None = None) -> None:
    if cancel.cancelled and cancel.reason in reasons:
        raise LLMCancelled(reason=cancel.reason, partial=partial)
