"""Planning and assessment steps, recipes, tiers and syntheses (CAP-053, CAP-054, CAP-066, CAP-080)."""

from __future__ import annotations

import pytest

from llm.testing import call
from observability.models import AgentInteraction
from plan.briefing import earlier_results
from plan.models import PlanStep, StepMessage
from plan.types import StepSpec
from prompt.services import publish_recipe
from tests.support.plans import agents_on, hold_plan, llm_step, run_plan
from tests.worker.test_runner import count_workspaces

pytestmark = pytest.mark.django_db(transaction=True)

OUTCOME = '{"assessment": "Thorough.", "satisfaction": 4, "suggestion": "Name the files."}'


def test_cap_066_each_kind_of_step_has_its_tier(scripted_llm):
    kinds = ("planning", "llm", "assessment")
    plan = hold_plan(*[StepSpec(key=kind, action="Do.", kind=kind) for kind in kinds])
    run_plan(plan, agents_on(scripted_llm("Planned.", "Done.", f"Good work.\n{OUTCOME}")))
    assert plan.status == "completed", plan.error
    by_step = {step.pk: step.key for step in PlanStep.objects.of(plan.pk)}
    tiers = {by_step[row.owner_id]: row.tier for row in AgentInteraction.objects.filter(plan_id=plan.pk)}
    assert tiers == {"planning": "planning", "llm": "execution", "assessment": "execution"}
    assert all(PlanStep.objects.of(plan.pk).values_list("model_used", flat=True))


def test_cap_080_an_assessment_step_leaves_an_outcome(scripted_llm):
    plan = hold_plan(llm_step("do"), StepSpec(key="judge", action="Judge it.", kind="assessment"))
    run_plan(plan, agents_on(scripted_llm("Done.", f"Good work.\n{OUTCOME}")))
    step = PlanStep.objects.get(plan=plan, key="judge")
    assert (step.outcome_assessment, step.outcome_satisfaction, step.improvement_suggestion) == (
        "Thorough.",
        4,
        "Name the files.",
    )


@pytest.mark.parametrize("said", ["Good work.", '{"assessment": "x", "satisfaction": 9}', '{"satisfaction": 3}'])
def test_an_assessment_without_an_outcome_fails(scripted_llm, said):
    plan = hold_plan(StepSpec(key="judge", action="Judge it.", kind="assessment"))
    run_plan(plan, agents_on(scripted_llm(said)))
    assert plan.status == "failed"
    assert "plan.outcome_invalid" in plan.error


def test_a_step_keeps_the_recipe_version_it_began_with(scripted_llm):
    publish_recipe(name="survey", prompt_template="Survey with care, first edition.")
    llm = scripted_llm(call("count_workspaces"), "Counted.")
    plan = hold_plan(llm_step("one", recipe="survey"))
    agents = agents_on(llm, count_workspaces)
    run_plan(plan, agents, slice_s=0)
    publish_recipe(name="survey", prompt_template="Second edition.")
    run_plan(plan, agents)
    assert PlanStep.objects.get(plan=plan).recipe_version == 1
    for request in llm.requests:
        assert "first edition" in str(request.system)
    assert llm.requests[0].system == llm.requests[1].system


def test_an_unknown_recipe_fails_the_step_before_any_call(scripted_llm):
    plan = hold_plan(llm_step("one", recipe="nowhere"))
    run_plan(plan, agents_on(scripted_llm("Never.", leftovers=True)))
    assert plan.status == "failed"
    assert not StepMessage.objects.exists()


def test_the_chain_of_syntheses_keeps_the_nearest_within_its_limit():
    plan = hold_plan(*[llm_step(f"s{n}") for n in range(6)])
    for step in PlanStep.objects.of(plan.pk).exclude(key="s5"):
        PlanStep.objects.filter(pk=step.pk).update(status="completed", llm_synthesis=f"{step.key}:" + "x" * 300)
    told = earlier_results(PlanStep.objects.get(plan=plan, key="s5"), limit=700)
    assert [key for key in ("s0:", "s1:", "s2:", "s3:", "s4:") if key in told] == ["s3:", "s4:"]
    assert "(3 earlier steps are left out for length.)" in told
    assert told.index("s3:") < told.index("s4:")
