"""Big results: head, tail and a handle for the model, the whole in a row (CAP-031); the plan's cache (CAP-035)."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from context.models import ScopeVersion
from tests.tools.conftest import MakeContext, call_of, executor_of
from tools.agent_tools import read_result
from tools.errors import NoSuchResult
from tools.executor import ToolExecutor, _OwnUnit, answered
from tools.models import StoredResult, ToolExecution
from tools.registry import Registry, tool
from tools.results import estimated_tokens
from tools.services import forget_conversation
from tools.types import ToolContext
from workspaces.models import Workspace

ADD = "capstan_workspaces.add_workspace"
local = Registry([read_result])
ran: list[str] = []


@tool(effect="read", registry=local)
def lines(count: int) -> str:
    """So many lines."""
    ran.append(f"lines {count}")
    return "\n".join(f"line {number} ünï" for number in range(count))


@tool(effect="read", registry=local)
def rows(count: int) -> list[dict[str, int]]:
    """So many rows."""
    return [{"number": number} for number in range(count)]


@tool(effect="write", permission=ADD, registry=local)
def make(slug: str) -> str:
    """Make a workspace."""
    return Workspace.objects.create(slug=slug, name=slug).slug


@tool(effect="external", permission=ADD, registry=local)
def notify() -> str:
    """Tell the world."""
    return "told"


@pytest.fixture(autouse=True)
def _small_results(settings: Any) -> None:
    settings.CAPSTAN_TOOLS = {"result_tokens": 500, "batch_tokens": 1200}
    ran.clear()


def do(executor: ToolExecutor, context: ToolContext, name: str, **arguments: Any) -> tuple[str, str]:
    """Check, run and record one call as a loop does: its kind, and the text the model reads."""
    checked = executor.check(call_of(name, **arguments), context)
    outcome = answered(checked)
    unit = _OwnUnit()
    if checked.kind == "external":
        with transaction.atomic():
            executor.start_external(unit, checked, context)
        outcome = executor.run_external(checked, context)
    elif outcome is None and checked.kind == "read":
        (outcome,) = executor.run_reads([(checked, context)])
    with transaction.atomic():
        outcome = outcome or executor.run_in_unit(unit, checked, context)
        text = executor.record(unit, checked, context, outcome)
        ScopeVersion.objects.bump(unit.scopes)
    return checked.kind, text


def handle_in(text: str) -> tuple[str, int]:
    found = re.search(r'read_result\(handle="(\d+)", offset=(\d+)\)', text)
    assert found is not None
    return found[1], int(found[2])


@pytest.mark.parametrize("name", ["lines", "rows"])
def test_a_big_result_is_paged_through_without_a_gap(name: str, context_of: MakeContext) -> None:
    executor, context = executor_of(local), context_of()
    _, text = do(executor, context, name, count=3000)
    assert estimated_tokens(text) < 600
    row = ToolExecution.objects.get()
    whole = StoredResult.objects.get(pk=row.pk).text
    assert row.result is None
    assert row.value() == local.by_name[name].fn(3000)
    handle, offset = handle_in(text)
    assert whole[:offset] in text
    read = whole[:offset]
    while offset is not None:
        page = read_result(handle, context_of(), offset)
        assert page["offset"] == len(read)
        read, offset = read + page["text"], page["next_offset"]  # type: ignore[assignment]
    assert read == whole
    assert read.endswith(text.splitlines()[-2][-100:])


def test_a_page_read_by_the_model_is_not_cut_again(context_of: MakeContext) -> None:
    executor = executor_of(local)
    _, text = do(executor, context_of(), "lines", count=3000)
    handle, offset = handle_in(text)
    _, page = do(executor, context_of(round=2), "read_result", handle=handle, offset=offset)
    assert "left out" not in page
    assert '"next_offset":' in page


def test_a_handle_is_good_only_in_its_conversation_or_plan(context_of: MakeContext, workspace: Workspace) -> None:
    executor, here = executor_of(local), uuid4()
    _, text = do(executor, context_of(conversation_id=here, plan_id=5), "lines", count=3000)
    handle, _ = handle_in(text)
    for inside in ({"conversation_id": here}, {"plan_id": 5}, {}):
        assert read_result(handle, context_of(**{"owner_id": 7 if not inside else 99, **inside}))["offset"] == 0
    east = Workspace.objects.create(slug="east", name="East")
    for outside in (
        {"owner_id": 99},
        {"owner_id": 99, "conversation_id": uuid4()},
        {"owner_id": 99, "plan_id": 6},
        {"workspace": east, "plan_id": 5},
    ):
        with pytest.raises(NoSuchResult):
            read_result(handle, context_of(**outside))
    for wrong in ("nonsense", "", "9" * 30, "-1"):
        with pytest.raises(NoSuchResult):
            read_result(wrong, context_of())


def test_all_results_of_a_round_share_one_cap(context_of: MakeContext) -> None:
    executor = executor_of(local)
    texts = [do(executor, context_of(), "lines", count=3000)[1] for _ in range(5)]
    assert sum(estimated_tokens(text) for text in texts) < 2200  # 1,200, a smallest share each, and the marks
    assert estimated_tokens(texts[-1]) < estimated_tokens(texts[0])
    assert estimated_tokens(do(executor, context_of(round=2), "lines", count=3000)[1]) > 450


def test_cap_035_a_plans_reads_are_answered_from_its_ledger(context_of: MakeContext) -> None:
    executor = executor_of(local)

    def kind(**place: Any) -> str:
        return do(executor, context_of(**{"plan_id": 5, **place}), "lines", count=2)[0]

    assert [kind(), kind(), kind(owner_id=8)] == ["read", "cached", "cached"]
    assert ran == ["lines 2"]
    assert ToolExecution.objects.filter(cached=True).count() == 2
    assert do(executor, context_of(plan_id=5), "lines", count=3)[0] == "read"
    assert kind(plan_id=6) == "read"
    assert kind(plan_id=None) == "read"


def test_cap_035_a_cached_big_result_is_whole(context_of: MakeContext) -> None:
    executor = executor_of(local)
    _, first = do(executor, context_of(plan_id=5), "lines", count=3000)
    kind, second = do(executor, context_of(plan_id=5, round=2), "lines", count=3000)
    assert kind == "cached"
    assert first.splitlines()[:5] == second.splitlines()[:5]


@pytest.mark.parametrize("write", ["own write", "own external", "somebody's write"])
def test_cap_035_any_write_drops_the_plans_cached_reads(write: str, context_of: MakeContext) -> None:
    executor = executor_of(local)
    assert do(executor, context_of(plan_id=5), "lines", count=2)[0] == "read"
    if write == "own external":
        do(executor, context_of(plan_id=5), "notify")
    else:
        do(executor, context_of(plan_id=5 if write == "own write" else None), "make", slug="x")
    assert do(executor, context_of(plan_id=5), "lines", count=2)[0] == "read"
    assert do(executor, context_of(plan_id=5), "lines", count=2)[0] == "cached"
    assert len(ran) == 2


def test_cap_035_a_read_after_a_write_of_the_same_unit_is_fresh(context_of: MakeContext) -> None:
    executor = executor_of(local)
    do(executor, context_of(plan_id=5), "lines", count=2)
    context, unit = context_of(plan_id=5), _OwnUnit()
    with transaction.atomic():
        checked = executor.check(call_of("make", slug="x"), context)
        executor.record(unit, checked, context, executor.run_in_unit(unit, checked, context))
        assert executor.check(call_of("lines", count=2), context_of(plan_id=5)).kind == "read"


def test_a_deleted_conversation_leaves_counts_and_no_content(context_of: MakeContext) -> None:
    executor, here = executor_of(local), uuid4()
    do(executor, context_of(conversation_id=here), "lines", count=3000)
    do(executor, context_of(conversation_id=here), "make", slug="secret-name")
    do(executor, context_of(conversation_id=here, plan_id=5), "rows", count=2)
    forget_conversation(conversation_id=here)
    rows = ToolExecution.objects.order_by("pk")
    assert list(rows.values_list("tool_name", "conversation_id")) == [("lines", None), ("make", None), ("rows", None)]
    assert list(rows.values_list("arguments", "result", "plan_id")) == [({}, None, None)] * 3
    assert StoredResult.objects.count() == 0
