"""A plan as a graph and as a timeline: drawn, live while it runs and is adapted, for eyes, keyboards and readers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Locator, Page, Route, expect

from events.models import EventRecord, Stream
from events.types import EventName
from llm.testing import Gate, When, held, say, user_said
from plan import services
from plan.adapting import adapt_plan
from plan.models import ExecutionPlan, PlanStep
from plan.types import StepChange, StepSpec
from streaming.signals import wake
from tests.browser.conftest import Reader, shot
from tests.streaming.talk import session_of
from tests.support.plans import hold_plan, llm_step
from tests.support.processes import Processes
from tests.support.runs import make_user, make_workspace
from tools.units import intervention
from worker.dispatch import send
from workspaces.models import User

pytestmark = [pytest.mark.browser, pytest.mark.timeout(150), pytest.mark.django_db(transaction=True)]

GOAL = "Analyse the `auth` module and propose a refactor plan"
SURVEY, MODELS = "Survey what belongs to `auth` and where its borders run.", "Read the models and what refers to them."
VIEWS, DESIGN = "Follow every view down to the tables it touches.", "Propose where the module should be split, and why."
SUM = "Sum up what was found and what to do next."
HOSTILE = "<img src=x onerror=alert(1)>"

Open = Callable[..., Page]


@pytest.fixture(scope="module", autouse=True)
def beside_a_loop() -> Iterator[None]:
    """Playwright keeps an event loop in this thread; the rows of these tests are made beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture
def owner(transactional_db: None) -> User:
    return make_user("ada", is_superuser=True)


@pytest.fixture
def opened(browser: Browser, processes: Processes, owner: User) -> Iterator[Open]:
    """Opens a plan's page as its owner; the first time a web process is started, with `environment`."""
    readers: list[tuple[str, Reader]] = []

    def open_page(plan: ExecutionPlan, *, environment: dict[str, str] | None = None, **options: Any) -> Page:
        if not readers:
            _, url = processes.web(environment=environment)
            cookie = {"name": "sessionid", "value": session_of(owner), "url": url, "sameSite": "Lax"}
            readers.append((url, Reader(browser, {"cookies": [cookie], "origins": []})))
        url, reader = readers[0]
        page = reader.open(f"{url}/plans/{plan.pk}/", **options)
        expect(page.locator(".node").first).to_be_attached()
        return page

    yield open_page
    for _, reader in readers:
        reader.close()
        assert reader.complaints == []


def branching(owner: User, **columns: Any) -> ExecutionPlan:
    return hold_plan(
        StepSpec(key="survey", action=SURVEY, reads=()),
        StepSpec(key="models", action=MODELS, reads=("survey",)),
        StepSpec(key="views", action=VIEWS, reads=("survey",), is_critical=False),
        StepSpec(key="design", action=DESIGN, reads=("models", "views"), kind="planning"),
        StepSpec(key="sum-up", action=SUM, reads=("design",)),
        owner=owner,
        workspace=make_workspace(owner),
        **columns,
    )


def node(page: Page, key: str) -> Locator:
    return page.locator(f'[data-node="{key}"]')


def row(page: Page, key: str) -> Locator:
    return page.locator(f'[data-row="{key}"]')


def states(page: Page, of: str = "node") -> dict[str, str]:
    found: dict[str, str] = page.locator(f"[data-{of}]").evaluate_all(
        f"all => Object.fromEntries(all.map((each) => [each.dataset.{of}, each.dataset.status]))"
    )
    return found


def edges(page: Page) -> set[tuple[str, str]]:
    return {
        (each[0], each[1])
        for each in page.locator(".edge").evaluate_all("all => all.map((e) => [e.dataset.from, e.dataset.to])")
    }


def width_of(page: Page, key: str) -> float:
    return float(row(page, key).locator(".span").get_attribute("width") or 0)


def tell(plan: ExecutionPlan, *events: EventRecord) -> None:
    with intervention(ExecutionPlan, plan.pk) as change:
        Stream.objects.append(change.run.stream_id, list(events), correlation_id="test")
    wake(plan.stream_id)


def move(step: PlanStep, arrow: Callable[[], object], **more: Any) -> None:
    """Take an arrow of a step and tell it, as its plan's owner would."""
    with intervention(ExecutionPlan, step.plan_id) as change:
        assert arrow()
        step.refresh_from_db()
        services.record_step(step, events=change, **more)


def pause(page: Page) -> None:
    """Bars long enough for a picture; a test needs none."""
    if os.environ.get("CAPSTAN_SCREENSHOTS"):
        page.wait_for_timeout(5_000)


def test_a_plan_is_drawn_live_while_it_runs_and_after_it_was_adapted(
    opened: Open, owner: User, processes: Processes, openai_loopback: Any
) -> None:
    plan = branching(owner)
    ExecutionPlan.objects.filter(pk=plan.pk).update(goal=GOAL)
    gates = {key: Gate() for key in ("survey", "models", "views", "design")}
    answers = {
        "survey": (SURVEY, "`auth` holds **7 modules** and 41 classes; `models`, `views` and `backends` are its core."),
        "models": (MODELS, "`User` is referred to from 9 apps, `Permission` from 2."),
        "views": (VIEWS, "Five views touch `User` directly; the rest go through forms."),
        "design": (DESIGN, "Split `auth.tokens` and `auth.backends` off; `models` stays."),
    }
    script = [When(user_said(action), held(gates[key], say(text))) for key, (action, text) in answers.items()]
    model = openai_loopback(*script, When(user_said("Try it"), say("It holds.")))
    page = opened(plan, environment=model.environment())
    page.evaluate("window.mark = 'the same page'")
    assert states(page) == dict.fromkeys(["survey", "models", "views", "design", "sum-up"], "pending")
    assert edges(page) == {
        ("survey", "models"),
        ("survey", "views"),
        ("models", "design"),
        ("views", "design"),
        ("design", "sum-up"),
    }
    expect(node(page, "survey")).to_contain_text("Planned")
    expect(node(page, "design")).to_contain_text("Planning")
    assert node(page, "survey").locator(".diamond").count() == 1
    assert node(page, "views").locator(".diamond").count() == 0

    processes.worker(environment=model.environment())
    assert send("plan", plan.pk)
    expect(node(page, "survey")).to_have_attribute("data-status", "running")
    expect(node(page, "survey").locator(".state")).to_contain_text("Running · ")
    gates["survey"].open()
    expect(node(page, "survey")).to_contain_text("Done · ")
    for key in ("models", "views"):
        expect(node(page, key)).to_have_attribute("data-status", "running")
        expect(page.locator(f'.edge[data-to="{key}"]')).to_have_attribute("data-state", "active")
    pause(page)
    shot(page, "plan-graph")

    page.get_by_role("tab", name="Timeline").click()
    expect(row(page, "survey").locator(".span")).to_be_visible()
    expect(page.locator(".heading")).to_have_text("Not begun")
    assert row(page, "design").locator(".span").count() == 0
    expect(row(page, "design")).to_contain_text("Planned")
    assert page.locator(".axis .tick").count() >= 2
    assert re.fullmatch(r"\d\d:\d\d(:\d\d)?", page.locator(".axis .tick").first.text_content() or "")
    before = width_of(page, "models")
    page.wait_for_function(
        "before => Number(document.querySelector('[data-row=models] .span').getAttribute('width')) > before", arg=before
    )
    gates["views"].open()
    expect(row(page, "views")).to_have_attribute("data-status", "completed")

    changes = [
        StepChange(op="insert", key="try-out", after="design", fields={"action": "Try it on a copy."}),
        StepChange(op="remove", key="sum-up"),
    ]
    adapt_plan(plan_id=plan.pk, changes=changes, by=owner)
    expect(row(page, "try-out")).to_be_visible()
    expect(row(page, "sum-up")).to_have_count(0)
    listed = page.locator("[data-step]")
    expect(listed).to_have_count(5)
    assert listed.evaluate_all("all => all.map((each) => each.dataset.step)")[-1] == "try-out"
    page.get_by_role("tab", name="Graph").click()
    expect(node(page, "try-out")).to_contain_text("Planned")
    expect(node(page, "sum-up")).to_have_count(0)
    assert ("design", "try-out") in edges(page)
    for key in ("models", "design"):
        pause(page)
        gates[key].open()
    expect(node(page, "try-out")).to_have_attribute("data-status", "completed", timeout=30_000)
    expect(page.locator(".plan")).to_have_attribute("data-status", "completed")
    assert set(states(page).values()) == {"completed"}
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator(".row .span")).to_have_count(5)
    expect(page.locator(".now")).to_have_count(0)
    shot(page, "plan-timeline")
    assert page.evaluate("window.mark") == "the same page"

    live = states(page, "row")
    page.reload()
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")  # as it was left
    expect(page.locator(".row .span")).to_have_count(5)
    assert states(page, "row") == live
    dark = opened(plan, color_scheme="dark")
    expect(node(dark, "try-out")).to_contain_text("Done")
    assert dark.locator(".shape").first.evaluate("each => getComputedStyle(each).fill") != "rgb(255, 255, 255)"
    shot(dark, "plan-graph-dark")
    phone = opened(plan, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    assert set(states(phone).values()) == {"completed"}
    shot(phone, "plan-mobile")


def test_waits_failures_and_skipped_steps_are_told_apart_without_colours(opened: Open, owner: User) -> None:
    plan = branching(owner)
    page = opened(plan)
    first, models, views = PlanStep.objects.of(plan.pk)[:3]

    steps = PlanStep.objects
    move(first, lambda: steps.start(first.pk))
    move(first, lambda: steps.complete(first.pk, result=None, synthesis="Found."), synthesis="Found.")
    for step in (models, views):
        move(step, lambda step=step: steps.start(step.pk))
    move(models, lambda: steps.wait_for_approval(models.pk))
    due = timezone.now() + timedelta(seconds=60)
    again = {"error": "llm.rate_limited", "not_before": due.isoformat()}
    move(views, lambda: steps.wait_for_retry(views.pk, seconds=60, error="429"), **again)
    expect(node(page, "models")).to_contain_text("Needs approval")
    expect(node(page, "views")).to_contain_text("Waiting to retry")
    node(page, "views").hover()
    expect(page.locator(".detail")).to_contain_text(f"Goes on{due:%H:%M:%S} UTC")
    board = {"status": "set", "board": {"phase": "exploring"}}
    tell(plan, EventRecord(EventName.BLACKBOARD, {"plan_id": plan.pk, "step": "survey", **board}))
    expect(page.locator("[data-plan-board] dd:visible")).to_have_text(["exploring"])
    shapes = {
        key: node(page, key).locator(".mark-of").evaluate("each => each.innerHTML")
        for key in ("survey", "models", "views", "design")
    }
    assert len(set(shapes.values())) == 4  # done, two waits and a step to come: four marks
    page.get_by_role("tab", name="Timeline").click()
    expect(row(page, "models").locator(".wait")).to_have_count(1)
    expect(page.locator(".legend")).to_contain_text("waiting")
    page.reload()
    expect(row(page, "models").locator('.wait[data-status="waiting_approval"]')).to_have_count(1)
    expect(row(page, "views").locator('.wait[data-status="waiting_retry"]')).to_have_count(1)

    move(views, lambda: steps.fail(views.pk, error="still 429"), error="still 429")
    expect(row(page, "views")).to_contain_text("Failed")
    with intervention(ExecutionPlan, plan.pk) as change:
        arrow = services.failed(change.run, error="no budget is left", step="views", events=change)
        assert ExecutionPlan.objects.move(plan.pk, frm={"pending"}, to=arrow.to, **arrow.columns)
    expect(page.locator(".plan > [data-slot=error]")).to_have_text("step views: no budget is left")
    expect(page.locator('[data-step="survey"] [data-slot=error]')).to_be_hidden()
    expect(row(page, "design")).to_have_attribute("data-status", "skipped")
    page.get_by_role("tab", name="Graph").click()
    expect(node(page, "design")).to_contain_text("Skipped")
    expect(node(page, "views")).to_contain_text("Failed")
    assert states(page) == dict(PlanStep.objects.of(plan.pk).values_list("key", "status"))


def test_a_shape_that_comes_late_takes_nothing_back(opened: Open, owner: User) -> None:
    plan = branching(owner)
    page = opened(plan)
    asked: list[Route] = []
    page.route("**/graph/", lambda route: asked.append(route))
    step, steps = PlanStep.objects.of(plan.pk)[0], PlanStep.objects
    move(step, lambda: steps.start(step.pk))
    with page.expect_request("**/graph/"):
        adapt_plan(plan_id=plan.pk, changes=[StepChange(op="remove", key="sum-up")], by=owner)
    expect(page.locator("[data-step]")).to_have_count(4)
    [route] = asked
    answer = route.fetch()
    move(step, lambda: steps.complete(step.pk, result=None, synthesis="Found."), synthesis="Found.")
    expect(page.locator('[data-step="survey"]')).to_have_attribute("data-status", "completed")
    route.fulfill(response=answer)
    expect(node(page, "sum-up")).to_have_count(0)
    expect(node(page, "survey")).to_have_attribute("data-status", "completed")


def test_two_changes_close_together_are_drawn_each_as_soon_as_it_is_known(opened: Open, owner: User) -> None:
    plan = branching(owner)
    page = opened(plan)
    asked: list[Route] = []
    page.route("**/graph/", lambda route: asked.append(route))
    with page.expect_request("**/graph/"):
        adapt_plan(plan_id=plan.pk, changes=[StepChange(op="remove", key="sum-up")], by=owner)
    expect(page.locator("[data-step]")).to_have_count(4)
    first = asked[0].fetch()
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="remove", key="design")], by=owner)
    expect(page.locator("[data-step]")).to_have_count(3)  # the list knows of both
    with page.expect_request("**/graph/"):
        asked[0].fulfill(response=first)
    expect(node(page, "sum-up")).to_have_count(0)  # though the second answer is still on its way
    expect(node(page, "design")).to_have_count(1)
    step = PlanStep.objects.get(plan=plan, key="survey")
    move(step, lambda: PlanStep.objects.start(step.pk))
    expect(node(page, "survey")).to_have_attribute("data-status", "running")
    asked[1].fulfill(response=asked[1].fetch())
    expect(node(page, "design")).to_have_count(0)


def test_a_timeline_of_hours_fits_a_canvas_with_no_room(opened: Open, owner: User) -> None:
    plan = branching(owner)
    began = timezone.now() - timedelta(hours=3)
    PlanStep.objects.filter(plan=plan, key="survey").update(status="running", started_at=began)
    page = opened(plan, viewport={"width": 180, "height": 600})
    page.get_by_role("tab", name="Timeline").click()
    expect(row(page, "survey").locator(".span")).to_have_count(1)
    assert page.locator(".axis .tick").count() <= 10
    assert width_of(page, "survey") > 0


def test_keyboards_and_screen_readers_find_their_way(opened: Open, owner: User) -> None:
    plan = branching(owner)
    PlanStep.objects.filter(plan=plan, key="survey").update(action=f"Survey {HOSTILE}")
    page = opened(plan, reduced_motion="reduce")
    drawing = page.get_by_role("img", name="Graph of the plan’s steps")
    expect(drawing).to_have_count(1)
    expect(drawing).to_have_accessible_description(re.compile("5 steps: 5 planned"))
    detail, said = page.locator(".detail"), page.locator("[data-announce]")
    node(page, "views").hover()
    expect(detail).to_contain_text("Follow every view down to the tables it touches.")
    expect(detail).to_contain_text("not critical")

    page.get_by_role("tab", name="Graph").focus()
    page.keyboard.press("Tab")
    expect(detail).to_contain_text("Survey <img src=x")  # as text
    expect(said).to_contain_text("survey: ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    expect(said).to_contain_text("sum-up: ")
    expect(page.locator(".node.current")).to_have_attribute("data-node", "sum-up")
    page.keyboard.press("Enter")
    expect(page.locator('[data-step="sum-up"] summary')).to_be_focused()
    expect(detail).to_be_hidden()
    node(page, "survey").click()
    expect(page.locator('[data-step="survey"] summary')).to_be_focused()

    page.get_by_role("tab", name="Graph").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Timeline")).to_be_focused()
    expect(page.get_by_role("img", name="Timeline of the plan’s steps")).to_have_count(1)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".row.current")).to_have_attribute("data-row", "models")
    assert page.locator(".views img").count() == 0
    PlanStep.objects.start(PlanStep.objects.get(plan=plan, key="survey").pk)
    page.reload()
    page.get_by_role("tab", name="Graph").click()
    stroke = node(page, "survey").locator(".mark-of .stroke")
    assert stroke.evaluate("each => getComputedStyle(each).animationName") == "none"


@pytest.mark.parametrize("count", [1, 50, 1_000])
def test_plans_of_every_size_fit_the_page(opened: Open, owner: User, count: int) -> None:
    earlier = {n: {n // 3, n // 2, n - 1} for n in range(count)}
    steps = [llm_step(f"s{n}", reads=tuple(f"s{m}" for m in earlier[n] if 0 <= m < n)) for n in range(count)]
    plan = hold_plan(*steps, owner=owner, workspace=make_workspace(owner), template="large")
    page = opened(plan)
    expect(page.locator("[data-step]")).to_have_count(count)
    drawn = page.locator("[data-node]")
    assert drawn.count() == count if count <= 50 else 0 < drawn.count() < 150
    last = f"s{count - 1}"
    page.locator("[data-slot=graph]").focus()
    page.keyboard.press("End")
    expect(node(page, last)).to_be_in_viewport()
    events = [
        EventRecord(EventName.PLAN_STEP, {**services.step_payload(step), "status": status})
        for step in PlanStep.objects.of(plan.pk)
        for status in ("running", "completed")
    ]
    tell(plan, *events)
    expect(node(page, last)).to_have_attribute("data-status", "completed")
    assert set(states(page).values()) == {"completed"}
    expect(page.locator(".plan [data-slot=count]")).to_have_text(f"{count} of {count}")
    page.get_by_role("tab", name="Timeline").click()
    assert page.locator("[data-row]").count() <= min(count, 100)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("[data-row]").count() == count  # paper does not scroll
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("[data-row]").count() <= min(count, 100)
    page.locator("[data-slot=timeline]").focus()
    page.keyboard.press("End")
    expect(row(page, last)).to_be_in_viewport()
    phone = opened(plan, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert phone.evaluate("document.documentElement.scrollWidth") == 390


def test_a_slow_script_is_not_taken_for_a_wrong_clock(opened: Open, owner: User) -> None:
    """The page says what time it is for the server; its scripts begin to read that some time after it came."""
    page = opened(branching(owner))
    skew = page.evaluate(
        """async () => {
            const now = Date.now;
            Date.now = () => now() + 5_000; // that much later
            const { PlanModel } = await import("/static/chat/plan-model.js");
            const graph = JSON.parse(document.getElementById("plan-graph").textContent);
            return new PlanModel(graph).skew;
        }"""
    )
    assert skew == 0


def test_the_layout_keeps_layers_apart_and_edges_from_crossing(opened: Open, owner: User) -> None:
    page = opened(branching(owner))
    found = page.evaluate(
        """async () => {
            const { layout } = await import("/static/chat/plan-layout.js");
            const keys = ["a", "b", "c", "d", "x", "y", "z"];
            const edges = [["a", "d"], ["b", "c"], ["c", "x"], ["d", "y"], ["a", "z"], ["x", "z"], ["y", "z"]];
            const { layers, places, routes } = layout(keys, edges);
            const all = [...places].map(([key, { layer, at }]) => [key, layer, at]);
            return { layers, all, bends: routes.map((route) => route.bends.length) };
        }"""
    )
    places = {key: (layer, at) for key, layer, at in found["all"]}
    assert found["layers"] == 4
    assert "".join(f"{key}{layer}" for key, layer, _ in sorted(found["all"])) == "a0b0c1d1x2y2z3"
    for one, other in (("a", "b"), ("c", "d"), ("x", "y")):
        assert abs(places[one][1] - places[other][1]) >= 1
    side = places["a"][1] < places["b"][1]
    assert (places["d"][1] < places["c"][1]) == (places["y"][1] < places["x"][1]) == side  # no two edges cross
    assert found["bends"] == [0, 0, 0, 0, 2, 0, 0]  # the long edge passes between the steps of two layers
