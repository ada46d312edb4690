"""A plan is checked as a whole before it is held (CAP-050), and a template's references are too."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.utils import timezone

from plan import services
from plan.errors import PlanInvalid, UnknownTemplate
from plan.models import ExecutionPlan, PlanStep
from plan.services import Recorded
from plan.templates import register_template
from plan.types import PlanTemplate, StepSpec
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
