"""Run a turn: claim it, keep its lease, let the agent answer, and end it whatever comes (design § 5, § 6)."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from django.db import InterfaceError, OperationalError
from django.db.models import F, Max

from blackboard.extract import extract
from chat.ending import end_turn
from chat.models import Message, Turn
from chat.past import refuse_stranger
from chat.settings import chat_settings
from chat.transcript import ChatTranscript
from events.types import EventName
from llm.errors import LLMCancelled, LLMError, RateLimitError
from llm.ports import BaseLLM, CancelToken
from llm.types import LLMResponse, ModelEvent, TextDelta
from loop.live import LiveRun
from loop.ports import LoopOutcome
from loop.settings import loop_settings
from observability.correlation import correlated
from observability.crashpoints import crash_point
from prompt.models import WorkflowTemplate
from prompt.types import AgentIdentity, Tier
from prompt.validate import check_recipe, validate
from tools.errors import LeaseLost
from tools.heartbeat import owner_name, watching
from tools.ports import dispatcher
from tools.queries import seconds_used
from tools.runs import ClockTimestamp, RunRef, RunStatus
from tools.units import Arrow, Unit, in_unit, release_connection
from workspaces.errors import CapstanError

logger = logging.getLogger(__name__)

LEAST_S = 0.001  # of a turn whose time is over: it is asked for its final answer at once
GRACE_S = 30.0  # beyond the turn's own limits, before the heartbeat gives it up
MAX_WAIT_S = 600.0
CONDENSING: Tier = "execution"

NOTICES = {
    "llm.authentication": "The model refused our key. Tell whoever runs this server.",
    "llm.quota_exhausted": "The account at the model's provider has no credit left.",
    "llm.context_too_long": "This conversation, or your question, is too long for the model. Begin a new one.",
    "llm.request_too_large": "This conversation, or your question, is too long for the model. Begin a new one.",
    "chat.question_too_large": "Your question is too long for the model's window. Shorten it, or split it.",
    "chat.no_member": "The author of this message is no active member of the workspace any more.",
    "llm.malformed_response": "What answered at the model's address is no model. Tell whoever runs this server.",
    "llm.timeout": "The model did not answer in time. Try again.",
    "llm.connection": "The model could not be reached. Try again later.",
    "llm.overloaded": "The model is overloaded. Try again later.",
    "llm.rate_limited": "The model's provider kept us waiting too long. Try again later.",
}
WAITS = "The model’s provider asks us to wait {seconds} s. The answer goes on by itself."
NOTICE = "The answer failed ({code}). Try again, or tell whoever runs this server."


class Agent(Protocol):
    """What a turn asks of the agent that `agents` builds."""

    identity: AgentIdentity
    llm: BaseLLM
    tier: Tier

    def handle_message(
        self,
        user_id: int,
        text: str,
        *,
        transcript: Any,
        cancel: CancelToken | None = None,
        on_event: Callable[[int, ModelEvent], None] | None = None,
        deadline_s: float | None = None,
        recipe: WorkflowTemplate | None = None,
    ) -> LoopOutcome: ...


class Agents(Protocol):
    """Builds the agent of a name; `factory.agents.create_agent` is one."""

    def __call__(self, identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any: ...


def run_turn(
    turn_id: int,
    *,
    agents: Agents,
    clock: Callable[[], datetime],
    suspect: bool = False,
    sync_seconds: float | None = None,
) -> Turn:
    """Answer a turn, under a lease; the same for the request that sent it and for a worker.

    Args:
        agents: builds the agent of the turn's identity.
        clock: aware UTC time.
        suspect: take only a turn whose last attempts came to nothing.
        sync_seconds: after so many seconds it goes back to the queue for a worker; None: it stays here to its end.

    Returns:
        The turn as it is now. A turn that was not free, or that somebody else took over, is theirs to end.

    Raises:
        OperationalError, InterfaceError: the database failed; recovery takes the turn up.
    """
    claimed = Turn.objects.claim(turn_id, owner=owner_name(), suspect=suspect)
    if claimed is None:
        return _fresh(turn_id)
    turn = _fresh(turn_id)
    run = RunRef.of(claimed)
    crash_point("turn.claimed")
    with correlated(turn.correlation_id):
        try:
            _run(turn, run, agents=agents, sync_seconds=sync_seconds)
        except LeaseLost as exc:
            logger.info("turn %s goes on elsewhere: %s", turn_id, exc)
    crash_point("turn.answered")
    return _fresh(turn_id)


def _run(turn: Turn, run: RunRef, *, agents: Agents, sync_seconds: float | None) -> None:
    cancel, board = CancelToken(), False
    try:
        agent: Agent = agents(turn.identity, mode="conversation")
        board = agent.identity.blackboard
        live = LiveRun(run.stream_id, f"turn:{run.pk}", fence=run.fence, resumed=run.fence > 1, board=board)

        def heard(number: int, event: ModelEvent) -> None:
            live(number, event)
            if isinstance(event, TextDelta):
                crash_point("turn.streaming")

        seconds = agent.identity.limits.turn_seconds
        if run.fence > 1:  # what earlier owners took is gone
            seconds = max(seconds - seconds_used("turn", turn.pk), LEAST_S)
        watched = watching(run, cancel=cancel, deadline_s=seconds + loop_settings().final_answer_s + GRACE_S)
        with watched, _handing_over(cancel, sync_seconds), closing(live):
            question = turn.question.text if turn.question is not None else ""
            recipe = _recipe(turn, agent.identity, question)
            transcript = ChatTranscript(run=run, turn=turn, identity=agent.identity, model=agent.llm.model_id)
            in_unit(run, lambda unit: _begin(unit, turn))
            refuse_stranger(turn)
            condenser = agent if agent.tier == CONDENSING else agents(turn.identity, tier=CONDENSING)
            transcript.condense(llm=condenser.llm, tier=CONDENSING, cancel=cancel)
            agent.handle_message(
                turn.user_id,
                question,
                transcript=transcript,
                cancel=cancel,
                on_event=heard,
                deadline_s=seconds,
                recipe=recipe,
            )
    except RateLimitError as exc:
        _wait_for_provider(turn, run, exc)
    except LLMCancelled as exc:
        _stopped(turn, run, exc, board=board)
    except LeaseLost:
        raise
    except CapstanError as exc:
        logger.warning("turn %s failed: %s", turn.pk, exc)
        partial = _seen(exc.partial, board=board) if isinstance(exc, LLMError) else None
        notice = NOTICES.get(exc.code, NOTICE.format(code=exc.code))
        _end(turn, run, RunStatus.FAILED, stop_reason=exc.code, notice=notice, error=str(exc), partial=partial)
    except (OperationalError, InterfaceError):
        raise
    except Exception as exc:
        logger.exception("turn %s failed", turn.pk)
        notice = NOTICE.format(code="internal error")
        _end(turn, run, RunStatus.FAILED, stop_reason="internal", notice=notice, error=f"{type(exc).__name__}: {exc}")


def _begin(unit: Unit, turn: Turn) -> None:
    """Say that somebody is at it. That is no progress: a turn that kills its process each time must not begin anew."""
    unit.progress = False
    unit.record(EventName.TYPING, run=f"turn:{turn.pk}", turn_id=turn.pk)

    def forget_the_wait() -> None:
        Turn.objects.filter(pk=turn.pk).update(notice="")

    if turn.notice:
        unit.close_with(forget_the_wait)


def _fresh(turn_id: int) -> Turn:
    return Turn.objects.select_related("workspace", "user", "conversation", "question").get(pk=turn_id)


def _recipe(turn: Turn, identity: AgentIdentity, question: str) -> WorkflowTemplate | None:
    """The recipe the turn began with, checked before any model call (CAP-022, CAP-023)."""
    if not turn.recipe:
        return None
    recipe = WorkflowTemplate.objects.resolve(turn.recipe, turn.recipe_version)
    check_recipe(recipe, identity)
    validate(recipe.validators, {"text": question})
    return recipe


@contextmanager
def _handing_over(cancel: CancelToken, sync_seconds: float | None) -> Iterator[None]:
    """Cancel with `handover` when the request has waited long enough; a worker goes on from the rows."""
    if sync_seconds is None:
        yield
        return
    timer = threading.Timer(sync_seconds, cancel.cancel, ["handover"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _wait_for_provider(turn: Turn, run: RunRef, exc: RateLimitError) -> None:
    """Back to the queue until the provider takes us again; nothing sleeps (design § 5.5)."""
    waits = turn.rate_limit_waits + 1
    if waits > chat_settings().rate_limit_waits:
        _end(turn, run, RunStatus.FAILED, stop_reason=exc.code, notice=NOTICES[exc.code], error=str(exc))
        return
    seconds = min(exc.retry_after_s if exc.retry_after_s is not None else 2.0**waits, MAX_WAIT_S)

    def body(unit: Unit) -> None:
        unit.record(EventName.RATE_LIMIT, run=f"turn:{turn.pk}", turn_id=turn.pk, retry_after_s=seconds, attempt=waits)
        arrow = Arrow(
            RunStatus.QUEUED,
            {
                "not_before": ClockTimestamp() + timedelta(seconds=seconds),
                "rate_limit_waits": F("rate_limit_waits") + 1,
                "notice": WAITS.format(seconds=max(1, math.ceil(seconds))),
            },
        )
        unit.close_with(lambda: arrow)

    in_unit(run, body)


def _stopped(turn: Turn, run: RunRef, exc: LLMCancelled, *, board: bool) -> None:
    """The model call was cancelled: by a person, the clock, a shutdown or the end of a request's patience."""
    partial = _seen(exc.partial, board=board)
    match exc.reason:
        case "lease_lost":
            return
        case "handover" | "shutdown":

            def hand_back(unit: Unit) -> None:
                unit.close_with(lambda: Arrow(RunStatus.QUEUED))
                dispatcher().dispatch_after_commit(Turn, turn.pk)

            in_unit(run, hand_back)
        case "deadline":
            _end(
                turn,
                run,
                RunStatus.FAILED,
                stop_reason="wall_clock",
                notice="The time for this answer was over.",
                partial=partial,
            )
        case _:
            _end(
                turn,
                run,
                RunStatus.CANCELLED,
                stop_reason="cancelled",
                notice="Cancelled.",
                partial=partial,
            )


def _seen(partial: LLMResponse | None, *, board: bool) -> LLMResponse | None:
    """What had arrived, without the board of an agent that keeps one."""
    return replace(partial, content=extract(partial.content).visible) if partial is not None and board else partial


def _end(
    turn: Turn,
    run: RunRef,
    to: RunStatus,
    *,
    stop_reason: str,
    notice: str,
    error: str = "",
    partial: LLMResponse | None = None,
) -> None:
    """End the turn, keeping the text that had arrived, marked as partial."""
    release_connection()
    text = partial.content if partial is not None else ""

    def body(unit: Unit) -> None:
        if text.strip():
            last = Message.objects.filter(turn_id=turn.pk).aggregate(last=Max("round"))["last"] or 0
            row = Message.objects.create(
                conversation_id=turn.conversation_id,
                turn_id=turn.pk,
                parent_id=turn.question_id,
                round=last + 1,
                role="assistant",
                text=text,
                model=partial.model if partial is not None else "",
                stop_reason=stop_reason[:24],
                partial=True,
            )
            unit.record(
                EventName.AI_MESSAGE,
                run=f"turn:{turn.pk}",
                turn_id=turn.pk,
                message_id=row.pk,
                round=row.round,
                text=text,
                final=True,
                partial=True,
            )
        end_turn(unit, turn, to=to, text=text, stop_reason=stop_reason[:32], notice=notice, error=error)

    in_unit(run, body)
