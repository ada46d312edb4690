"""What the loop asks of whoever owns its rows: chat for a turn, worker for an LLM step (CAP-040)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from events.models import EventRecord
from llm.types import LLMMessage, LLMResponse, ToolCall
from observability.types import CallOwner, Interaction
from tools.runs import RunRef
from tools.types import Envelope, ToolContext
from tools.units import Unit


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call of a stored reply; `envelope` is None while it has no result."""

    call: ToolCall
    position: int
    envelope: Envelope | None


@dataclass(frozen=True, slots=True)
class Journal:
    """Where a run stands: what its rounds have used, and the round that is open, if one is.

    Args:
        rounds: rounds stored so far; the next model call makes round `rounds` + 1.
        open_calls: the calls of the last stored reply when some have no result yet; the loop goes on with those.
        calls: (name, canonical arguments) of every call so far, for the limits.
        tokens: input and output so far.
        cost_usd: so far; None when the price of a call is unknown.
    """

    rounds: int = 0
    open_calls: tuple[StoredCall, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    tokens: int = 0
    cost_usd: Decimal | None = Decimal(0)


class Transcript(Protocol):
    """Rows of one run, read and written in units. It holds no connection between two calls."""

    run: RunRef
    owner: CallOwner

    def journal(self) -> Journal:
        """Where the run stands, read afresh."""
        ...

    def messages(self) -> Sequence[LLMMessage]:
        """The history to send: windowed, repaired, the newest user message with its dynamic layer last."""
        ...

    def tool_context(self, *, round: int, position: int) -> ToolContext:  # noqa: A002  # a round is a round
        """Who calls, for the executor."""
        ...

    def unit(self) -> AbstractContextManager[Unit]:
        """The run's next unit."""
        ...

    def store_reply(self, unit: Unit, *, round: int, response: LLMResponse, interaction: Interaction) -> None:  # noqa: A002
        """The assistant message with its calls, and the interaction row."""
        ...

    def store_note(self, unit: Unit, *, round: int, text: str) -> None:  # noqa: A002
        """What the loop itself told the model before round `round`: a `note` row after all rows of the round before."""
        ...

    def store_result(self, unit: Unit, *, round: int, stored: StoredCall, envelope: Envelope, content: str) -> None:  # noqa: A002
        """The result of one call as the model will read it."""
        ...

    def finish(self, unit: Unit, *, text: str, stop_reason: str, notice: str = "", plan_id: int | None = None) -> None:
        """The run's part that the loop drives is over: sets the unit's closing."""
        ...

    def park(self, unit: Unit) -> None:
        """Calls wait for a person: sets the unit's closing."""
        ...


@dataclass(frozen=True, slots=True)
class ReadResult:
    """One read that was run, with all that is stored of it.

    Args:
        stored: the call.
        envelope: its answer.
        content: what the model reads.
        ledger: its row in the ledger, by column.
    """

    stored: StoredCall
    envelope: Envelope
    content: str
    ledger: Mapping[str, Any]


class StoresReadRounds(Protocol):
    """A transcript that can store a round of reads in one statement; whoever has no need of it leaves it out."""

    def store_read_round(
        self,
        *,
        round: int,  # noqa: A002
        response: LLMResponse,
        interaction: Interaction,
        results: Sequence[ReadResult],
        events: Sequence[EventRecord],
    ) -> None:
        """The reply, its interaction, the results, the ledger's rows and the events, in one commit that holds the run.

        Raises:
            LeaseLost: the run is somebody else's by now; nothing was written.
        """
        ...


PlanCreated = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class LoopOutcome:
    """How a loop ended: `ended` (the transcript was finished), or `parked` (calls wait for a person)."""

    status: str
    text: str = ""
    stop_reason: str = ""
    plan_id: int | None = None
    rounds: int = 0
    tool_names: tuple[str, ...] = field(default=())
