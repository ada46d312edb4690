"""The calls of one message: in which order and in which transactions they run (design § 5.3).

    reads before the first write   side by side, no transaction open
    then one unit                  the stored reply, all results so far, writes and reads one by one
    an external call               alone between two commits, the first of which stores that it started
    create_plan                    after all others; when it succeeds, its commit ends the run
    a call that waits for a person parks the run; writes and externals behind it wait with it

The body of a unit may run again after a serialization failure, so it changes nothing but rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from events.models import EventRecord
from events.types import EventName
from llm.errors import LLMCancelled
from llm.types import LLMResponse
from loop.ports import PlanCreated, ReadResult, StoredCall, StoresReadRounds, Transcript
from observability.crashpoints import crash_point
from observability.types import Interaction
from prompt.builder import canonical_json
from prompt.types import Limits
from tools.calls import Outcome
from tools.executor import Checked, ToolExecutor
from tools.plain import plain_read
from tools.types import Envelope, ToolContext
from tools.units import Unit, release_connection, rerun

NUDGE = "\n\n(You have made this very call {count} times. Its result will not change: use it, or do something else.)"
REPEATED = "this call was made {count} times already with the same arguments; it is not run again"
TOO_MANY = "the limit of {limit} tool calls is reached; answer with what you have"
ONE_PLAN = "one message makes one plan; this second one was not made"
PLAN_BESIDE_PARKED = "no plan was made: another call of this message waits for a person; decide first, then plan"


@dataclass(slots=True)
class Reply:
    """What the model said in a round; `committed` once its rows are there to stay."""

    response: LLMResponse
    interaction: Interaction
    note: str = ""
    committed: bool = False

    def mark_committed(self) -> None:
        self.committed = True


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """How the calls of a message went: `open` (ask the model again), `ended`, or `parked`."""

    status: str
    text: str = ""
    plan_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Ran:
    stored: StoredCall
    context: ToolContext
    checked: Checked
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Part:
    """What one commit left over: an external call to run now, and the calls behind it."""

    external: tuple[StoredCall, ToolContext, Checked] | None = None
    rest: tuple[StoredCall, ...] = ()
    handoffs: tuple[StoredCall, ...] = ()
    end: RoundEnd = field(default_factory=lambda: RoundEnd("open"))


@dataclass(frozen=True, slots=True)
class CallRound:
    """One round's calls.

    Args:
        before: (name, canonical arguments) of every call of the rounds before this one.
    """

    transcript: Transcript
    executor: ToolExecutor
    limits: Limits
    number: int
    before: Sequence[tuple[str, str]]
    on_plan_created: PlanCreated | None

    def run(self, calls: Sequence[StoredCall], *, reply: Reply | None) -> RoundEnd:
        """Run the calls that have no result yet.

        Args:
            calls: all calls of the message, in call order.
            reply: the message itself when it is not stored yet; the first commit stores it.

        Raises:
            LeaseLost: the run is somebody else's by now.
            LLMCancelled: somebody cancelled the run; of this commit's part nothing was stored but what an external
                call had done by then.
        """
        waiting = [stored for stored in calls if stored.envelope is None]
        seen = self._counts(calls)
        ran, rest = self._lead(waiting, seen)
        if reply is not None and not rest and self._stored_at_once(ran, reply, seen):
            return RoundEnd("open")
        handoffs: tuple[StoredCall, ...] = ()
        while True:
            try:
                part = rerun(
                    self.transcript.unit,
                    lambda unit, ran=ran, rest=rest, reply=reply, handoffs=handoffs: self._commit(  # type: ignore[misc]
                        unit, ran=ran, rest=rest, reply=reply, handoffs=handoffs, seen=seen
                    ),
                )
            except LLMCancelled:
                self._keep_external(ran, seen)
                raise
            if part.external is None:
                return part.end
            stored, context, checked = part.external
            crash_point("loop.external_started")
            release_connection()
            ran = (_Ran(stored, context, checked, self.executor.run_external(checked, context)),)
            crash_point("loop.external_ran")
            rest, reply, handoffs = part.rest, None, part.handoffs

    def _keep_external(self, ran: Sequence[_Ran], seen: dict[int, tuple[int, int]]) -> None:
        """Store what happened outside though the run was cancelled meanwhile."""
        happened = [each for each in ran if each.checked.kind == "external"]

        def body(unit: Unit) -> None:
            unit.despite_cancel = True
            for each in happened:
                self._record(unit, each, seen, began=True)

        if happened:
            rerun(self.transcript.unit, body)

    def _stored_at_once(self, ran: Sequence[_Ran], reply: Reply, seen: dict[int, tuple[int, int]]) -> bool:
        """Store a round of plain reads in one statement, where the transcript can; False: take the long way."""
        store = cast("StoresReadRounds", self.transcript).store_read_round if _quick(self.transcript) else None
        if store is None or reply.note or len(ran) == 0:
            return False
        results: list[ReadResult] = []
        events: list[EventRecord] = []
        for each in ran:
            told = plain_read(each.checked, each.context, each.outcome)
            if told is None:
                return False
            content = told.text + self._nudge(each, seen)
            results.append(ReadResult(each.stored, each.outcome.envelope, content, told.ledger))
            events.append(EventRecord(EventName.TOOL_START, self._place(each.stored, each.checked)))
            events.append(EventRecord(EventName.TOOL_END, self._ended(each)))
        crash_point("loop.before_commit")
        store(round=self.number, response=reply.response, interaction=reply.interaction, results=results, events=events)
        reply.mark_committed()
        return True

    def _counts(self, calls: Sequence[StoredCall]) -> dict[int, tuple[int, int]]:
        """By position: how many calls came before it in the run, and how often this very call was made, itself too."""
        earlier = list(self.before)
        counts: dict[int, tuple[int, int]] = {}
        for stored in calls:
            made = key_of(stored)
            counts[stored.position] = (len(earlier), earlier.count(made) + 1)
            earlier.append(made)
        return counts

    def _lead(
        self, waiting: Sequence[StoredCall], seen: dict[int, tuple[int, int]]
    ) -> tuple[tuple[_Ran, ...], tuple[StoredCall, ...]]:
        """The calls up to the first that is more than a read, run side by side; and the others."""
        leading: list[tuple[StoredCall, ToolContext, Checked]] = []
        rest: tuple[StoredCall, ...] = ()
        for index, stored in enumerate(waiting):
            context = self._context(stored)
            checked = self._check(stored, context, seen)
            if checked.kind not in {"read", "cached", "blocked"}:
                rest = tuple(waiting[index:])
                break
            leading.append((stored, context, checked))
        reads = [(checked, context) for _stored, context, checked in leading if checked.kind == "read"]
        outcomes = iter(self._run(reads))
        ran = tuple(
            _Ran(stored, context, checked, next(outcomes) if checked.kind == "read" else answered(checked))
            for stored, context, checked in leading
        )
        return ran, rest

    def _run(self, reads: Sequence[tuple[Checked, ToolContext]]) -> Sequence[Outcome]:
        """Run the reads side by side; a single one keeps the connection for the instant it may take."""
        if len(reads) == 1:
            return [self.executor.run_read(*reads[0])]
        return self.executor.run_reads(reads) if reads else []

    def _commit(
        self,
        unit: Unit,
        *,
        ran: Sequence[_Ran],
        rest: Sequence[StoredCall],
        reply: Reply | None,
        handoffs: tuple[StoredCall, ...],
        seen: dict[int, tuple[int, int]],
    ) -> _Part:
        if reply is not None:
            store_reply(self.transcript, unit, round_number=self.number, reply=reply)
        for each in ran:
            self._record(unit, each, seen, began=each.checked.kind == "external")
        parked = False
        for index, stored in enumerate(rest):
            context = self._context(stored)
            checked = self._check(stored, context, seen)
            if checked.kind == "handoff":
                handoffs = (*handoffs, stored)
            elif checked.kind == "parked":
                self.executor.park(unit, checked, context)
                parked = True
            elif parked and checked.kind in {"write", "external"}:
                continue  # waits with the call before it; the resumed run comes back to it
            elif checked.kind == "external":
                self.executor.start_external(unit, checked, context)
                self._started(unit, stored, checked)
                if reply is None and not ran and index == 0:
                    unit.progress = False  # a call that kills its process each time must not be opened for ever
                return _Part(external=(stored, context, checked), rest=tuple(rest[index + 1 :]), handoffs=handoffs)
            else:
                runs = checked.kind in {"read", "write"}
                outcome = self.executor.run_in_unit(unit, checked, context) if runs else answered(checked)
                self._record(unit, _Ran(stored, context, checked, outcome), seen)
        end = self._hand_off(unit, handoffs, seen, parked=parked)
        if end is None and parked:
            self.transcript.park(unit)
            end = RoundEnd("parked")
        crash_point("loop.before_commit")
        return _Part(end=end or RoundEnd("open"))

    def _hand_off(
        self, unit: Unit, handoffs: Sequence[StoredCall], seen: dict[int, tuple[int, int]], *, parked: bool
    ) -> RoundEnd | None:
        """Make the plan when it is alone; the run ends in this commit when that worked (CAP-044)."""
        end: RoundEnd | None = None
        for stored in handoffs:
            context = self._context(stored)
            checked = self._check(stored, context, seen)
            reason = PLAN_BESIDE_PARKED if parked else ONE_PLAN if end is not None else ""
            if reason or checked.kind == "blocked":
                refusal = refused(checked, reason) if reason else checked
                self._record(unit, _Ran(stored, context, refusal, answered(refusal)), seen)
                continue
            outcome = self.executor.run_in_unit(unit, checked, context)
            self._record(unit, _Ran(stored, context, checked, outcome), seen)
            if outcome.envelope["success"] and self.on_plan_created is not None:
                plan_id = int(outcome.envelope["result"]["plan_id"])
                end = RoundEnd("ended", text=self.on_plan_created(plan_id), plan_id=plan_id)
        if end is not None:
            self.transcript.finish(unit, text=end.text, stop_reason="plan_created", plan_id=end.plan_id)
        return end

    def _context(self, stored: StoredCall) -> ToolContext:
        return self.transcript.tool_context(round=self.number, position=stored.position)

    def _check(self, stored: StoredCall, context: ToolContext, seen: dict[int, tuple[int, int]]) -> Checked:
        checked = self.executor.check(stored.call, context)
        count, same = seen[stored.position]
        if checked.kind == "blocked":
            return checked
        if count >= self.limits.tool_calls:
            return refused(checked, TOO_MANY.format(limit=self.limits.tool_calls))
        if same > self.limits.same_call:
            return refused(checked, REPEATED.format(count=same - 1))
        return checked

    def _started(self, unit: Unit, stored: StoredCall, checked: Checked) -> None:
        unit.record(EventName.TOOL_START, **self._place(stored, checked))

    def _record(self, unit: Unit, ran: _Ran, seen: dict[int, tuple[int, int]], *, began: bool = False) -> None:
        stored, envelope = ran.stored, ran.outcome.envelope
        content = self.executor.record(unit, ran.checked, ran.context, ran.outcome)
        content += self._nudge(ran, seen)
        self.transcript.store_result(unit, round=self.number, stored=stored, envelope=envelope, content=content)
        if not began:
            self._started(unit, stored, ran.checked)
        unit.record(EventName.TOOL_END, **self._ended(ran))

    def _nudge(self, ran: _Ran, seen: dict[int, tuple[int, int]]) -> str:
        same = seen[ran.stored.position][1]
        asked_often = same == self.limits.same_call and same > 1 and ran.checked.kind != "blocked"
        return NUDGE.format(count=same) if asked_often else ""

    def _ended(self, ran: _Ran) -> dict[str, Any]:
        envelope = ran.outcome.envelope
        return {
            **self._place(ran.stored, ran.checked),
            "success": envelope["success"],
            "error": envelope["error"],
            "duration_ms": ran.outcome.duration_ms,
        }

    def _place(self, stored: StoredCall, checked: Checked) -> dict[str, Any]:
        owner, name = self.transcript.owner, stored.call["name"]
        label = checked.spec.label if checked.spec is not None else ""
        return {
            "run": f"{owner.kind}:{owner.id}",
            "plan_id": owner.plan_id,
            "round": self.number,
            "position": stored.position,
            "tool": name,
            "label": label or name.replace("_", " "),
        }


def _quick(transcript: Transcript) -> bool:
    return hasattr(transcript, "store_read_round")


def key_of(stored: StoredCall) -> tuple[str, str]:
    """What makes two calls the same."""
    return stored.call["name"], canonical_json(stored.call["arguments"])


def refused(checked: Checked, reason: str) -> Checked:
    """The same call, not to be run."""
    return replace(checked, kind="blocked", envelope=Envelope(success=False, result=None, error=reason))


def answered(checked: Checked) -> Outcome:
    """The outcome of a call that was answered without running."""
    assert checked.envelope is not None, f"a {checked.kind} call comes with its answer"
    return Outcome(
        envelope=checked.envelope, duration_ms=0, status="blocked" if checked.kind == "blocked" else "succeeded"
    )


def store_reply(transcript: Transcript, unit: Unit, *, round_number: int, reply: Reply) -> None:
    """The note before it, if there is one, and the reply with its interaction."""
    if reply.note:
        transcript.store_note(unit, round=round_number, text=reply.note)
    transcript.store_reply(unit, round=round_number, response=reply.response, interaction=reply.interaction)
    unit.after_commit(reply.mark_committed)
