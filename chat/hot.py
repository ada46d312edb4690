"""The hot path: a round whose calls only read, in one prepared statement (design § 5.3).

The order is that of a unit: the stream's row, the turn's with its fence, then the rows and the events. A statement that
finds the fence gone writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from psycopg.types.numeric import Int4, Int8

from blackboard.types import Board
from chat.models import Conversation, Message, Turn
from events.models import Event, EventRecord, Stream
from observability.models import AgentInteraction
from observability.services import columns_of
from observability.types import Interaction
from tools.membership import IS_MEMBER
from tools.models import ToolExecution
from tools.prepared import Prepared, record_of
from tools.runs import RunRef


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply's row as the database holds it: its JSON reads back as every later request will read it.

    Args:
        member: the turn's author is an active member of its workspace, as of this commit.
    """

    pk: int
    tool_calls: list[Any]
    blocks: Any
    member: bool


def store_read_round(
    run: RunRef,
    *,
    turn: Turn,
    parent_id: int,
    round_number: int,
    reply: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    ledger: Sequence[Mapping[str, Any]],
    events: Sequence[EventRecord],
    interaction: Interaction,
    board: Board | None = None,
) -> StoredReply:
    """Store a whole round and hold the turn, in one commit.

    Args:
        reply: columns of the assistant message.
        results: of each tool message: position, text, tool_call_id, tool_name, is_error.
        ledger: of each call, by the columns of `tools.models.ToolExecution`.
        events: in order; the reply's key is put into the first, which tells of the message.
        board: the conversation's board from now on; None: it stays as it is.

    Raises:
        LeaseLost: the turn is somebody else's by now; nothing was written.
        LLMCancelled: somebody cancelled the turn; nothing was written.
    """
    facts = columns_of(interaction)
    params: dict[str, Any] = {
        "stream": run.stream_id,
        "turn": Int8(run.pk),
        "fence": Int8(run.fence),
        "lease": float(settings.CAPSTAN_LEASE_SECONDS),
        "conversation": turn.conversation_id,
        "parent": Int8(parent_id),
        "round": Int4(round_number),
        "correlation": run.correlation_id,
        "w": Int8(run.workspace_id),
        "u": Int8(turn.user_id),
        "many": Int8(len(events)),
        "reply": _json({**_EMPTY, **reply}),
        "results": _json([{**_EMPTY, **result} for result in results]),
        "ledger": _json(ledger),
        "events": _json([{"place": n, "name": e.name, "payload": e.payload} for n, e in enumerate(events, start=1)]),
        "facts": _json(facts),
    }
    if board is not None:
        params["board"] = _json(board)
    row = _statement(with_board=board is not None).row(params)
    if row is None:
        raise run.rows.refused(run.pk, fence=run.fence)
    return StoredReply(pk=row[0], tool_calls=_read(row[1]), blocks=_read(row[2]), member=row[3])


_EMPTY: dict[str, Any] = {
    "position": 0,
    "role": "tool",
    "text": "",
    "dynamic": "",
    "tool_calls": [],
    "tool_call_id": "",
    "tool_name": "",
    "is_error": False,
    "thinking": "",
    "blocks": None,
    "model": "",
    "provider": "",
    "stop_reason": "",
    "partial": False,
}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _read(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@cache
def _statement(*, with_board: bool) -> Prepared:
    message, ledger, facts = (model._meta.db_table for model in (Message, ToolExecution, AgentInteraction))
    columns = ", ".join(_EMPTY)
    from_json = ", ".join(f"x.{name}" for name in _EMPTY)  # JSON's null becomes SQL's
    record = record_of(Message, list(_EMPTY))
    skip = {"id", "created_at", "ended_at"}
    ledger_columns = [str(f.column) for f in ToolExecution._meta.concrete_fields if f.column not in skip]
    facts_columns = [str(f.column) for f in AgentInteraction._meta.concrete_fields if f.column not in skip]
    ledger_record = record_of(ToolExecution, ledger_columns)
    facts_record = record_of(AgentInteraction, facts_columns)
    board = f"""board AS (
        UPDATE {Conversation._meta.db_table} c SET board = %(board)s::jsonb FROM held
        WHERE c.stream_id = %(conversation)s),"""  # noqa: S608
    own = "(conversation_id, turn_id, parent_id, round, created_at, " + columns + ")"
    return Prepared(
        f"""WITH lk AS MATERIALIZED (
        SELECT id FROM {Stream._meta.db_table} WHERE id = %(stream)s FOR NO KEY UPDATE),
    held AS MATERIALIZED (
        UPDATE {Turn._meta.db_table} t SET attempts = 0,
            lease_until = clock_timestamp() + %(lease)s * interval '1 second'
        FROM lk WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'running'
            AND t.cancel_requested_at IS NULL RETURNING t.id),
    st AS MATERIALIZED (
        UPDATE {Stream._meta.db_table} s SET last_seq = s.last_seq + %(many)s FROM held WHERE s.id = %(stream)s
        RETURNING s.last_seq - %(many)s AS before),
    {board if with_board else ""}
    reply AS MATERIALIZED (
        INSERT INTO {message} {own}
        SELECT %(conversation)s, held.id, %(parent)s, %(round)s, clock_timestamp(), {from_json}
        FROM held, jsonb_to_record(%(reply)s::jsonb) AS x({record}) RETURNING id, tool_calls, blocks),
    results AS (
        INSERT INTO {message} {own}
        SELECT %(conversation)s, %(turn)s, reply.id, %(round)s, clock_timestamp(), {from_json}
        FROM reply, jsonb_to_recordset(%(results)s::jsonb) AS x({record})),
    calls AS (
        INSERT INTO {ledger} ({", ".join(ledger_columns)}, created_at, ended_at)
        SELECT {", ".join(f"x.{name}" for name in ledger_columns)}, clock_timestamp(), clock_timestamp()
        FROM held, jsonb_to_recordset(%(ledger)s::jsonb) AS x({ledger_record})),
    facts AS (
        INSERT INTO {facts} ({", ".join(facts_columns)}, created_at)
        SELECT {", ".join(f"x.{name}" for name in facts_columns)}, clock_timestamp()
        FROM held, jsonb_to_record(%(facts)s::jsonb) AS x({facts_record})),
    told AS (
        INSERT INTO {Event._meta.db_table} (stream_id, seq, name, payload, correlation_id, created_at)
        SELECT %(stream)s, st.before + x.place, x.name,
            CASE WHEN x.place = 1 THEN x.payload || jsonb_build_object('message_id', reply.id) ELSE x.payload END,
            %(correlation)s, clock_timestamp()
        FROM st, reply, jsonb_to_recordset(%(events)s::jsonb) AS x(place bigint, name text, payload jsonb))
    SELECT reply.id, reply.tool_calls, reply.blocks, {IS_MEMBER} FROM reply"""  # noqa: S608
    )
