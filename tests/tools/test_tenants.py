"""No tenant's context bleeds into another's: threads, failures, retries, caches (case H/33, CAP-036)."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.utils import timezone

from events.models import Stream
from prompt.types import AgentIdentity, Limits
from tests.tools.conftest import call_of
from tools.doors import call_tool, run_call
from tools.executor import ToolExecutor
from tools.models import ToolCallRun, ToolExecution
from tools.registry import Registry, tool
from tools.types import ToolContext, idempotency_key
from workspaces.models import Membership, User, Workspace

ADD = "capstan_workspaces.add_workspace"
local = Registry()


@tool(effect="read", registry=local)
def secret(context: ToolContext, user_id: int, scope_id: str) -> dict[str, Any]:
    """What this caller may know."""
    own = Membership.objects.filter(user_id=user_id, workspace_id=scope_id).select_related("user", "workspace").get()
    return {"word": f"{own.workspace.slug}/{own.user.username}", "correlation": context.correlation_id}


@tool(effect="write", permission=ADD, registry=local)
def make(context: ToolContext, user_id: int, scope_id: str) -> str:
    """Fails for A, so that what comes next in the same thread starts from a failure."""
    if context.workspace.slug == "a":
        raise RuntimeError("no")
    return f"{context.workspace.slug}/{context.user.username}"


IDENTITY = AgentIdentity(
    name="tester", system_tone="", allowed_tools=frozenset({"secret", "make"}), limits=Limits(parallel_reads=8)
)
executor = ToolExecutor(local, IDENTITY, mode="workflow")


@pytest.fixture
def people(transactional_db: None) -> list[tuple[User, Workspace]]:
    """Two tenants, two users each."""
    found = []
    for slug in ("a", "b"):
        space = Workspace.objects.create(slug=slug, name=slug)
        for name in ("one", "two"):
            user = User.objects.create_user(f"{slug}-{name}", password=None)
            Membership.objects.create(user=user, workspace=space)
            user.user_permissions.add(Permission.objects.get(codename="add_workspace"))
            found.append((User.objects.get(pk=user.pk), space))
    return found


def context_of(user: User, space: Workspace, number: int) -> ToolContext:
    return ToolContext(
        user=user,
        workspace=space,
        identity=IDENTITY,
        mode="workflow",
        owner_kind="turn",
        owner_id=number,
        round=1,
        position=1,
        correlation_id=f"c-{number}-{user.username}",
        idempotency_key=idempotency_key("turn", number, 1, 1),
        now=timezone.now(),
    )


def word(user: User, space: Workspace) -> str:
    return f"{space.slug}/{user.username}"


def test_case_h_33_side_by_side_reads_see_their_own_tenant(people: list[tuple[User, Workspace]]) -> None:
    order = [person for person in people for _ in range(10)]
    random.Random(4).shuffle(order)
    pairs = [
        (executor.check(call_of("secret", user_id=1, scope_id="1"), context), context)
        for context in [context_of(user, space, number) for number, (user, space) in enumerate(order)]
    ]
    outcomes = executor.run_reads(pairs)
    for (user, space), (_, context), outcome in zip(order, pairs, outcomes, strict=True):
        assert outcome.envelope["result"] == {"word": word(user, space), "correlation": context.correlation_id}


def test_case_h_33_f_from_async_code_many_at_once(people: list[tuple[User, Workspace]]) -> None:
    def one(number: int) -> tuple[str, str]:
        user, space = people[number % len(people)]
        try:
            envelope = executor.execute(call_of("secret"), context=context_of(user, space, number))
        finally:
            connection.close()
        return word(user, space), envelope["result"]["word"]

    async def many() -> list[tuple[str, str]]:
        return list(await asyncio.gather(*[asyncio.to_thread(one, number) for number in range(40)]))

    for wanted, got in asyncio.run(many()):
        assert got == wanted


def test_case_h_33_b_a_failure_of_one_tenant_leaves_nothing_for_the_next(
    people: list[tuple[User, Workspace]],
) -> None:
    def one(number: int) -> None:
        user, space = people[number % len(people)]
        try:
            envelope = executor.execute(call_of("make"), context=context_of(user, space, number))
            assert envelope["success"] is (space.slug == "b")
            assert envelope["result"] == (word(user, space) if space.slug == "b" else None)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(24)))
    rows = ToolExecution.objects.values_list("workspace__slug", "user__username", "status")
    assert all(
        name.startswith(slug) and status == ("failed" if slug == "a" else "succeeded") for slug, name, status in rows
    )


def test_case_h_33_c_a_retry_is_the_same_tenant_user_run_and_trace(people: list[tuple[User, Workspace]]) -> None:
    user, space = people[0]
    call = ToolCallRun.objects.create(
        workspace=space,
        stream=Stream.objects.create(workspace=space),
        correlation_id="c-first",
        status="running",
        lease_until=timezone.now() - timedelta(minutes=1),
        attempts=1,
        user=user,
        identity="tester",
        mode="workflow",
        door="rest",
        tool_name="secret",
        arguments={"user_id": people[2][0].pk, "scope_id": people[2][1].scope_id},
    )
    done = run_call(call.pk, executor_of=lambda _: executor, clock=timezone.now)
    assert done is not None
    assert done.envelope is not None
    assert done.envelope["result"] == {"word": word(user, space), "correlation": "c-first"}
    row = ToolExecution.objects.get()
    assert (row.user, row.workspace, row.owner_id, row.correlation_id) == (user, space, call.pk, "c-first")


def test_case_h_33_i_the_plans_cache_crosses_no_tenant(people: list[tuple[User, Workspace]]) -> None:
    for number, (user, space) in enumerate([people[0], people[2], people[0]]):
        context = replace(context_of(user, space, number), plan_id=number)
        assert executor.execute(call_of("secret"), context=context)["result"]["word"] == word(user, space)


def test_case_h_33_k_who_left_the_tenant_calls_nothing(people: list[tuple[User, Workspace]]) -> None:
    user, space = people[0]
    Membership.objects.filter(user=user).delete()
    done = call_tool(
        executor=executor,
        user=user,
        workspace=space,
        name="secret",
        arguments={},
        door="rest",
        correlation_id="c",
        clock=timezone.now,
    )
    assert done.envelope is not None
    assert done.envelope["success"] is False
    assert "no active member" in str(done.envelope["error"])
