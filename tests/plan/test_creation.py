"""A plan is checked as a whole before it is held (CAP-050), and a template's references are too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from plan import services, templates
from plan.creation import filled_in
from plan.errors import PlanInvalid, ReferenceMissing, UnknownTemplate
from plan.models import ExecutionPlan, PlanStep
from plan.services import Recorded
from plan.templates import register_template
from plan.types import MAX_RESULT, PlanTemplate, StepSpec
from tests.support.plans import data_step, events_of, llm_step
from tests.support.runs import make_conversation

pytestmark = pytest.mark.django_db


def create(*steps: StepSpec, goal: str = "Look into it.", known_tools=frozenset({"search"})) -> ExecutionPlan:
    conversation = make_conversation()
    events = Recorded()
    with transaction.atomic():
        plan = services.create_plan(
            goal=goal,
            steps=steps,
            owner=conversation.user,
            workspace=conversation.workspace,
            identity="planner",
            conversation_id=conversation.pk,
            turn_id=None,
            stream_id=conversation.pk,
            correlation_id="c",
            events=events,
            now=timezone.now(),
            known_tools=known_tools,
        )
    assert [event.name for event in events.events] == ["plan_created"]
    return plan


def problems(*steps: StepSpec, **more) -> list[str]:
    with pytest.raises(PlanInvalid) as raised:
        create(*steps, **more)
    assert not ExecutionPlan.objects.exists()
    return list(raised.value.details["problems"])


def test_cap_050_plan_persists_ordered_steps():
    plan = create(llm_step("a"), llm_step("b", reads=()), llm_step("c", tool_name="search"))
    rows = PlanStep.objects.of(plan.pk)
    assert [(row.order, row.key, row.reads, row.status) for row in rows] == [
        (1, "a", [], "pending"),
        (2, "b", [], "pending"),
        (3, "c", ["b"], "pending"),
    ]


def test_everything_that_is_wrong_is_told_at_once():
    told = problems(
        llm_step("a"),
        llm_step("a", reads=("later",)),
        llm_step("no good", tool_name="rm"),
        StepSpec(key="later", action=" "),
    )
    assert told == [
        "a: key: used by an earlier step",
        "a: reads: 'later' is no earlier step",
        "no good: key: 1 to 64 letters, digits, `_` or `-`",
        "no good: tool_name: no tool 'rm' may be used here",
        "later: action: say what is to be done",
    ]


@pytest.mark.parametrize("count", [0, 51])
def test_a_plan_has_one_to_fifty_steps(count):
    assert any("step" in problem for problem in problems(*[llm_step(f"s{n}") for n in range(count)]))


def test_a_reference_names_a_step_that_is_read():
    told = problems(
        data_step("a", "search"),
        data_step("b", "search", {"q": {"$from": "a.hits.0"}}),
        data_step("c", "search", {"q": [{"$from": "a.hits"}]}),
        data_step("d", "search", {"q": {"$from": "context.topic"}}),
    )
    assert told == [
        "c: args: 'a.hits' names no step that this step reads",
        "d: args: the plan's context holds no 'context.topic'",
    ]


TEMPLATE = register_template(
    PlanTemplate(
        id="test-survey",
        goal="Survey {topic}",
        requires=frozenset({"topic"}),
        steps=(data_step("find", "search", {"q": {"$from": "context.topic"}}), llm_step("sum")),
    )
)


def from_template(context, template_id="test-survey"):
    conversation = make_conversation()
    return services.from_template(
        template_id,
        context,
        owner=conversation.user,
        workspace=conversation.workspace,
        identity="planner",
        correlation_id="c",
        now=timezone.now(),
    )


def test_a_template_becomes_a_plan_on_a_stream_of_its_own():
    plan = from_template({"topic": "auth"})
    assert (plan.goal, plan.template, plan.context_json) == ("Survey auth", "test-survey", {"topic": "auth"})
    assert [row.kind for row in PlanStep.objects.of(plan.pk)] == ["data", "llm"]
    assert [event["event"] for event in events_of(plan)] == ["plan_created"]


def test_a_template_asks_for_its_context_before_anything_is_held():
    with pytest.raises(PlanInvalid) as raised:
        from_template({})
    assert raised.value.details["problems"] == ["context: 'topic' is missing"]
    with pytest.raises(UnknownTemplate):
        from_template({}, "no-such")
    assert not ExecutionPlan.objects.exists()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("a\0b", "'topic' holds a character"),
        ("\ud800", "'topic' holds a character"),
        ({"x": ["\0"]}, "'topic.x.0' holds a character"),
        ({"\0": 1}, "'topic.\\x00' is a key with a character"),
        (float("nan"), "'topic' holds a number that JSON cannot hold"),
        ([float("inf")], "'topic.0' holds a number that JSON cannot hold"),
        (10**5_000, "'topic' holds a number with too many digits"),
        (timezone.now(), "'topic' is of type datetime"),
        ({1: "x"}, "'topic.1' has a key of type int"),
        (nested(2_000), "is nested too deeply"),
    ],
    ids=["NUL", "surrogate", "inner NUL", "NUL key", "nan", "inf", "huge", "datetime", "number key", "deep"],
)
def test_a_context_that_is_no_plain_json_is_refused_by_its_key(value: Any, says: str) -> None:
    with pytest.raises(PlanInvalid) as raised:
        from_template({"topic": value})
    (problem,) = raised.value.details["problems"]
    assert problem.startswith("context: ")
    assert says in problem
    assert not ExecutionPlan.objects.exists()


@pytest.mark.parametrize(
    ("goal", "says"),
    [
        ("Survey {topic}\0", "goal: holds a character"),
        ("Survey \ud800 {topic}", "goal: holds a character"),
        ("Survey {topic:d}", "goal: the context does not fit into 'Survey {topic:d}'"),
        ("Survey {topic.name}", "goal: the context does not fit into"),
        ("Survey {}", "goal: the context does not fit into"),
    ],
    ids=["NUL", "surrogate", "format", "attribute", "position"],
)
def test_a_goal_that_cannot_be_kept_is_refused(goal: str, says: str) -> None:
    known = templates.template("test-survey")
    register_template(replace(known, id=f"test-{goal!r}", goal=goal))
    with pytest.raises(PlanInvalid) as raised:
        from_template({"topic": "auth"}, f"test-{goal!r}")
    (problem,) = raised.value.details["problems"]
    assert problem.startswith(says)


@pytest.mark.parametrize("text", ["Do\0it.", "Do \ud800 it."], ids=["NUL", "surrogate"])
def test_a_step_that_cannot_be_kept_is_refused_by_its_field(text: str) -> None:
    told = problems(StepSpec(key="a", action=text, args={"q": [text]}))
    assert [one.partition(" holds")[0] for one in told] == ["a: action:", "a: args: 'q.0'"]


def test_a_reference_into_a_result_that_was_not_kept_says_so() -> None:
    note = services._within_limit({"hits": ["x" * MAX_RESULT]})
    with pytest.raises(ReferenceMissing) as raised:
        filled_in({"q": {"$from": "big.hits.0"}}, {"big": note, "context": {}})
    assert raised.value.details["reference"] == "big.hits.0"
    assert f"was {note['bytes']:,} bytes; over 262,144 it is not kept" in str(raised.value)
    with pytest.raises(KeyError):
        filled_in({"q": {"$from": "small.hits.0"}}, {"small": {"truncated": True, "bytes": 7}, "context": {}})
