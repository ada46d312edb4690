"""A plan's read, asked of every policy in one question (CAP-035, CAP-036, CAP-039).

The same answers as `tools.policies`, for the calls that need the fewest: a read without a permission of its own that
no person is asked about, of a user without a daily budget. Everything else takes the ordinary way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from uuid import UUID

from psycopg.types.numeric import Int8

from context.models import ScopeVersion
from llm.types import ToolCall
from tools import calls
from tools.approvals import policy_of
from tools.calls import Outcome
from tools.errors import InvalidArguments
from tools.executor import ToolExecutor
from tools.exposure import refusal
from tools.membership import IS_MEMBER
from tools.policies import Checked
from tools.prepared import Prepared
from tools.settings import tool_settings
from tools.types import ToolContext

# For a statement whose parameters w and u are the workspace and the user.
MAY_READ = f"""{IS_MEMBER}, COALESCE((SELECT v.version
    FROM {ScopeVersion._meta.db_table} v WHERE v.workspace_id = %(w)s), 0)"""  # noqa: S608
_ASKED = Prepared(f"SELECT {MAY_READ}")
RESULT_CHARS = 8_000  # of a result that is written in the one statement


@dataclass(frozen=True, slots=True)
class MayRead:
    """What the database says about a user's reads in a workspace now.

    Args:
        member: he is an active member.
        scope_version: of the workspace; goes on the ledger, so that a later read may be answered from this one.
    """

    member: bool
    scope_version: int


@dataclass(frozen=True, slots=True)
class QuickCall:
    """A read that succeeded as the only call of its step, as the ledger keeps it.

    Args:
        arguments, result: JSON.
        duration_ms: wall clock.
    """

    user_id: int
    conversation_id: UUID | None
    tool_name: str
    idempotency_key: str
    arguments: str
    arguments_digest: str
    result: str
    duration_ms: int
    scope_version: int


def check_read(
    executor: ToolExecutor, call: ToolCall, context: ToolContext, *, may_read: MayRead | None
) -> Checked | None:
    """The call as `ToolExecutor.check` gives it, when it is a read to be run now; None: ask the ordinary way.

    It is never answered from the plan's earlier reads: that saves the looking up, and a read may always be run.

    Args:
        may_read: what the statement that started the step saw a moment ago; None: it is asked now.
    """
    spec = executor.registry.get(call["name"])
    if spec is None or spec.effect != "read" or spec.permission is not None or context.plan_id is None:
        return None
    limits = tool_settings()
    if limits.user_day_calls is not None or limits.user_day_tokens is not None or limits.user_day_cost_usd is not None:
        return None
    if policy_of(spec, context.identity) != "never":
        return None
    if refusal(call["name"], spec, executor.exposed_names(), context, mode=executor.mode) is not None:
        return None
    try:
        arguments = spec.signature.parse(call["arguments"])
    except InvalidArguments:
        return None
    may_read = may_read or ask(context)
    if not may_read.member:
        return None
    return Checked(call=call, kind="read", spec=spec, arguments=arguments, scope_version=may_read.scope_version)


def run_read(checked: Checked, context: ToolContext) -> Outcome:
    """Run the read in a thread, within its time; the connection is given back when it takes longer than an instant."""
    assert checked.spec is not None
    return calls.run_read(checked.spec, checked.arguments.values, context)


def ledger_of(checked: Checked, context: ToolContext, outcome: Outcome) -> QuickCall | None:
    """What goes on the ledger; None when the result is too large to be written this way."""
    result = json.dumps(outcome.envelope["result"], ensure_ascii=False)
    if len(result) > RESULT_CHARS:
        return None
    assert checked.scope_version is not None
    return QuickCall(
        user_id=context.user.pk,
        conversation_id=context.conversation_id,
        tool_name=checked.call["name"],
        idempotency_key=context.idempotency_key,
        arguments=json.dumps(checked.arguments.stored, ensure_ascii=False),
        arguments_digest=checked.digest,
        result=result,
        duration_ms=outcome.duration_ms,
        scope_version=checked.scope_version,
    )


def ask(context: ToolContext) -> MayRead:
    """What the database says now."""
    row = _ASKED.row({"w": Int8(context.workspace.pk), "u": Int8(context.user.pk)})
    assert row is not None
    return MayRead(member=row[0], scope_version=row[1])
