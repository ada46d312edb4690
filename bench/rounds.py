"""What a round of the loop costs: in memory, and persisted beside the same rows written by a bare psycopg loop.

    python bench/rounds.py [rounds] [repeats]

The model answers at once and each round calls one read tool. Prints one JSON line a measurement:

    W1  ours    the loop with a transcript and tools in memory, no rows at all; µs a round
    W2  ours    agent, loop, policies and transcript on PostgreSQL, one commit a round; ms a round
    W2  ours, a further round   the same without what a turn costs once: the long conversation less a short one
    W2  floor   the rows those rounds left, inserted and committed once a round through bare psycopg, prepared
    W2  floor, one pipeline     the same statements sent without waiting for each other's answers

Ours and the floors alternate, so that all meet the same neighbours; each line also says the CPU time of this process.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("DATABASE_POOL_SIZE", "4")

from bed import own_database, say

own_database()
logging.disable(logging.WARNING)

from django.db import connection
from django.utils import timezone

from chat import services
from chat.models import Conversation, Message, Turn
from chat.runner import run_turn
from events.models import Event, Stream
from factory.agents import create_agent
from llm.base import ModelPort
from llm.types import LLMMessage, LLMResponse, ToolCall, Usage
from loop.history import PastTurn, build_history
from loop.ports import Journal
from loop.react import bounded_react_loop
from observability.models import AgentInteraction
from observability.types import CallOwner
from prompt.types import Limits
from tools.calls import Outcome
from tools.executor import ToolExecutor
from tools.models import ToolExecution
from tools.policies import Checked
from tools.registry import Registry, tool
from tools.results import told
from tools.types import Arguments, Envelope
from workspaces.models import User
from workspaces.services import ensure_workspace

ASKED = "Collect the values one by one, then say 'done'."
SHORT = 10  # rounds
PAYLOAD = ("the quick brown fox jumps over the lazy dog and then goes home " * 3)[:180]
registry = Registry()


@tool(effect="read", chat=True, registry=registry)
def lookup(key: str, n: int) -> str:
    """Look up the value stored under a key."""
    return f"value of {key} is {n}: {PAYLOAD}"


class AtOnce(ModelPort):
    """Answers at once: `rounds` calls, then the end."""

    model_id, provider = "at-once", "none"

    def __init__(self, rounds: int) -> None:
        self.rounds, self.asked = rounds, 0

    def call(self, request: Any, *, on_event: Any = None, cancel: Any = None) -> LLMResponse:
        self.asked += 1
        usage = Usage(input_tokens=100, output_tokens=10)
        if self.asked > self.rounds:
            return LLMResponse(content="done", model=self.model_id, usage=usage)
        made = ToolCall(id=f"call_{self.asked}", name="lookup", arguments={"key": f"k{self.asked}", "n": self.asked})
        return LLMResponse(content="", tool_calls=[made], stop_reason="tool_use", model=self.model_id, usage=usage)

    def stream_request(self, request: Any, *, cancel: Any = None) -> Any:
        raise NotImplementedError("this model is only called")


# -- in memory


@dataclass
class MemoryUnit:
    """A unit of nothing: what has to happen after the commit happens at once."""

    def record(self, name: Any, **payload: Any) -> None: ...

    def after_commit(self, hook: Callable[[], None]) -> None:
        hook()


@dataclass
class MemoryTranscript:
    """The loop's rows as a list."""

    said: list[LLMMessage] = field(default_factory=lambda: [LLMMessage("user", ASKED)])
    owner: CallOwner = field(
        default_factory=lambda: CallOwner(kind="command", id=0, workspace_id=0, user_id=None, correlation_id="bench")
    )
    run: Any = None

    def journal(self) -> Journal:
        return Journal()

    def messages(self) -> Sequence[LLMMessage]:
        return build_history([PastTurn(1, tuple(self.said))])

    def tool_context(self, **place: int) -> Any:
        return place

    def unit(self) -> Any:
        return nullcontext(MemoryUnit())

    def store_reply(self, unit: Any, *, round: int, response: LLMResponse, interaction: Any) -> None:  # noqa: A002
        self.said.append(LLMMessage("assistant", response.content, tool_calls=tuple(response.tool_calls or ())))

    def store_result(self, unit: Any, *, round: int, stored: Any, envelope: Any, content: str) -> None:  # noqa: A002
        self.said.append(LLMMessage("tool", content, tool_call_id=stored.call["id"], tool_name=stored.call["name"]))

    def finish(self, unit: Any, **end: Any) -> None: ...


class MemoryExecutor:
    """The registry's tools, called as they are."""

    def __init__(self) -> None:
        self._schemas = ToolExecutor(registry, _identity(Limits()), mode="conversation").schemas()

    def schemas(self) -> Any:
        return self._schemas

    def check(self, call: ToolCall, context: Any) -> Checked:
        spec = registry.by_name[call["name"]]
        return Checked(call=call, kind="read", spec=spec, arguments=Arguments(call["arguments"], call["arguments"]))

    def run_reads(self, reads: Any) -> list[Outcome]:
        return [
            Outcome(
                Envelope(success=True, result=checked.spec.fn(**checked.arguments.values), error=None), 0, "succeeded"
            )
            for checked, _context in reads
        ]

    def run_read(self, checked: Checked, context: Any) -> Outcome:
        return self.run_reads([(checked, context)])[0]

    def record(self, unit: Any, checked: Checked, context: Any, outcome: Outcome) -> str:
        return told(checked.call["name"], outcome.envelope)


def _identity(limits: Limits) -> Any:
    who = create_agent("planner", llm=AtOnce(0)).identity
    return replace(who, allowed_tools=registry.names(), limits=limits)


def in_memory(rounds: int) -> Callable[[], None]:
    limits = Limits(iterations=rounds + 1, tool_calls=rounds + 1, same_call=10**6)
    executor: Any = MemoryExecutor()

    def run() -> None:
        transcript: Any = MemoryTranscript()
        outcome = bounded_react_loop(
            llm=AtOnce(rounds),
            executor=executor,
            transcript=transcript,
            system=(),
            limits=limits,
            tier="execution",
            deadline=time.monotonic() + 600,
        )
        assert (outcome.text, len(transcript.said)) == ("done", 2 * rounds + 2)

    return run


# -- persisted


@dataclass
class Persisted:
    """A person's conversations in the database, and the agent that answers them."""

    rounds: int
    turn: Turn | None = None

    def __post_init__(self) -> None:
        self.user = User.objects.create_user(f"bench-{time.time_ns()}", is_superuser=True)
        self.workspace = ensure_workspace(slug=f"bench-{self.user.pk}", name="bench", member=self.user)
        self.who = _identity(Limits(iterations=self.rounds + 1, tool_calls=self.rounds + 1, same_call=10**6))

    def agents(self, identity: str, **_options: Any) -> Any:
        agent = create_agent(self.who, llm=AtOnce(self.rounds))
        return replace(agent, executor=ToolExecutor(registry, self.who, mode="conversation"))

    def send(self) -> None:
        conversation = services.create_conversation(user=self.user, workspace=self.workspace, now=timezone.now())
        self.turn = services.send_message(
            conversation_id=conversation.pk,
            author=self.user,
            text=ASKED,
            respond_async=False,
            correlation_id="bench",
            now=timezone.now(),
        )

    def run(self) -> None:
        assert self.turn is not None
        self.turn = run_turn(self.turn.pk, agents=self.agents, clock=timezone.now)
        assert self.turn.status == "completed", self.turn.error

    def delete(self) -> None:
        Conversation.objects.filter(workspace=self.workspace).update(active_turn=None)
        Stream.objects.filter(workspace=self.workspace).delete()
        self.workspace.delete()
        self.user.delete()


def rows_of(turn: Turn, rounds: int) -> list[list[tuple[str, list[str], list[Any]]]]:
    """By round, (table, columns, values) of what our loop left, keys aside."""
    events = list(Event.objects.filter(stream=turn.stream_id, name__in=("ai_message", "tool_start", "tool_end")))
    found: list[list[tuple[str, list[str], list[Any]]]] = []
    for number in range(1, rounds + 1):
        owned = {"owner_kind": "turn", "owner_id": turn.pk, "round": number}
        rows: list[Any] = list(Message.objects.filter(turn=turn, round=number).order_by("position"))
        rows += [*AgentInteraction.objects.filter(**owned), *ToolExecution.objects.filter(**owned)]
        rows += [event for event in events if event.payload.get("round") == number]
        found.append([_insert(row) for row in rows])
    return found


def _insert(row: Any) -> tuple[str, list[str], list[Any]]:
    fields = [each for each in row._meta.concrete_fields if not each.primary_key]
    values = [each.get_db_prep_save(getattr(row, each.attname), connection) for each in fields]
    elsewhere = [v + 1_000_000 if f.name in {"round", "seq"} else v for f, v in zip(fields, values, strict=True)]
    return row._meta.db_table, [str(each.column) for each in fields], elsewhere


def floor(
    turn: Turn, rounds: list[list[tuple[str, list[str], list[Any]]]], *, pipeline: bool = False
) -> Callable[[], None]:
    """The same inserts, the counter's and the turn's UPDATE, one commit a round, on a connection of its own."""
    import psycopg

    parts = connection.get_connection_params()
    dsn = {name: parts[name] for name in ("host", "port", "user", "password", "dbname") if parts.get(name)}
    raw = psycopg.connect(**dsn, prepare_threshold=0)
    raw.execute("SELECT 1")
    raw.commit()

    def run() -> None:
        for rows in rounds:
            with raw.pipeline() if pipeline else nullcontext():
                for table, columns, values in rows:
                    names, places = ", ".join(f'"{name}"' for name in columns), ", ".join(["%s"] * len(columns))
                    raw.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", values)
                raw.execute("UPDATE capstan_events_stream SET last_seq = last_seq + 3 WHERE id = %s", [turn.stream_id])
                raw.execute(
                    "UPDATE capstan_chat_turn SET attempts = 0, lease_until = clock_timestamp() WHERE id = %s",
                    [turn.pk],
                )
                raw.commit()
        raw.close()

    return run


# -- measuring


@dataclass
class Series:
    """Seconds of wall and CPU time a repeat."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], None]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    def line(self, rounds: int, unit: float) -> dict[str, float]:
        return {
            "median": round(statistics.median(self.wall) / rounds * unit, 3),
            "best": round(min(self.wall) / rounds * unit, 3),
            "cpu": round(statistics.median(self.cpu) / rounds * unit, 3),
        }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    if rounds <= SHORT:
        raise SystemExit(f"rounds: more than {SHORT}, the length of the short conversation")
    for count in (SHORT, rounds):
        memory, work = Series(), in_memory(count)
        for _ in range(repeats):
            memory.time(work)
        say(w="W1", peer="ours", n=count, us_per_round=memory.line(count, 1e6))
    ours, turns, bare, piped = Series(), Series(), Series(), Series()
    bench, short = Persisted(rounds), Persisted(SHORT)
    try:
        for repeat in range(repeats + 3):
            for each, series in ((bench, ours), (short, turns)):
                each.send()
                if repeat < 3:  # prepares the statements
                    each.run()
                else:
                    series.time(each.run)
            if repeat >= 3:
                assert bench.turn is not None
                rows = rows_of(bench.turn, rounds)
                bare.time(floor(bench.turn, rows))
                moved = [[(table, names, _moved(names, values)) for table, names, values in one] for one in rows]
                piped.time(floor(bench.turn, moved, pipeline=True))
    finally:
        bench.delete()
        short.delete()
    say(w="W2", peer="ours", n=SHORT, ms_per_round=turns.line(SHORT, 1e3))
    say(w="W2", peer="ours", n=rounds, ms_per_round=ours.line(rounds, 1e3))
    more = rounds - SHORT
    further = Series(
        [(a - b) for a, b in zip(ours.wall, turns.wall, strict=True)],
        [(a - b) for a, b in zip(ours.cpu, turns.cpu, strict=True)],
    )
    say(w="W2", peer="ours, a further round", n=rounds, ms_per_round=further.line(more, 1e3))
    for name, series in (("floor", bare), ("floor, one pipeline", piped)):
        say(w="W2", peer=name, n=rounds, ms_per_round=series.line(rounds, 1e3))
        ratio = statistics.median(a / more / (b / rounds) for a, b in zip(further.wall, series.wall, strict=True))
        best = (min(ours.wall) - min(turns.wall)) / more / (min(series.wall) / rounds)
        say(w="W2", a_further_round_to=name, ratio=round(ratio, 2), best_to_best=round(best, 2))


def _moved(names: list[str], values: list[Any]) -> list[Any]:
    """The same row once more, where no other is."""
    return [v + 1_000_000 if name in {"round", "seq"} else v for name, v in zip(names, values, strict=True)]


if __name__ == "__main__":
    main()
