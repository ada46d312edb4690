"""People change pending steps in the admin: through the service, audited, within their workspace (CAP-055)."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from plan.adapting import adapt_plan
from plan.models import ExecutionPlan, PlanChange, PlanStep
from plan.types import StepChange
from tests.support.plans import events_of, hold_plan, llm_step
from tests.support.runs import make_user, make_workspace
from workspaces.models import Membership, User

pytestmark = pytest.mark.django_db
VIEWS = ("view_executionplan", "view_planstep", "view_planchange")


def staff(*codenames: str) -> User:
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def owner() -> User:
    return staff(*VIEWS)


@pytest.fixture
def plan(owner: User) -> ExecutionPlan:
    return hold_plan(llm_step("a"), llm_step("b"), llm_step("c"), owner=owner)


def page_of(plan: ExecutionPlan) -> str:
    return reverse("admin:capstan_plan_executionplan_adapt", args=[plan.pk])


def shown(plan: ExecutionPlan) -> str:
    return reverse("admin:capstan_plan_executionplan_change", args=[plan.pk])


def send(client: Client, plan: ExecutionPlan, op: str, **fields: Any) -> Any:
    revision = ExecutionPlan.objects.values_list("revision", flat=True).get(pk=plan.pk)
    return client.post(page_of(plan), {"op": op, "revision": revision, **fields})


def step_fields(prefix: str, **fields: Any) -> dict[str, Any]:
    whole = {"action": "Do it.", "reads": "", "is_critical": "on", "args": "{}", **fields}
    return {f"{prefix}-{name}": value for name, value in whole.items()}


def shape(plan: ExecutionPlan) -> list[tuple[int, str, list[str]]]:
    return list(PlanStep.objects.of(plan.pk).values_list("order", "key", "reads"))


def test_a_step_is_inserted_audited_and_told(plan: ExecutionPlan, owner: User) -> None:
    client = signed_in(owner)
    assert page_of(plan) in client.get(shown(plan)).content.decode()
    response = send(client, plan, "insert", **step_fields("insert", key="new", after="a", kind="llm", action="Look."))
    assert response.status_code == 302
    assert shape(plan) == [(1, "a", []), (2, "new", ["a"]), (3, "b", ["a", "new"]), (4, "c", ["b"])]
    written = PlanChange.objects.get()
    assert (written.action, written.by, written.before, written.after["action"]) == ("insert", owner, None, "Look.")
    assert events_of(plan)[-1]["event"] == "plan_adapted"
    listed = client.get(shown(plan)).content.decode()
    assert "<b>action</b> Look." in listed
    assert 'name="_save"' not in listed


def test_a_step_that_reads_nothing_may_be_said(plan: ExecutionPlan, owner: User) -> None:
    send(signed_in(owner), plan, "insert", **step_fields("insert", key="new", after="a", kind="llm", reads="-"))
    assert shape(plan)[1] == (2, "new", [])


def test_a_step_is_changed_and_only_what_differs_is_sent(plan: ExecutionPlan, owner: User) -> None:
    client = signed_in(owner)
    form = client.get(page_of(plan), {"step": "c"}).content.decode()
    assert "Do c." in form
    fields = step_fields("update", action="Do it well.", reads="a, b", tier="planning")
    del fields["update-is_critical"]
    response = send(client, plan, "update", step="c", **fields)
    assert response.status_code == 302
    step = PlanStep.objects.get(plan=plan, key="c")
    assert (step.action, step.reads, step.is_critical, step.tier) == ("Do it well.", ["a", "b"], False, "planning")
    written = PlanChange.objects.get()
    assert (written.before["action"], written.after["action"], written.by) == ("Do c.", "Do it well.", owner)
    history = client.get(reverse("admin:capstan_plan_planchange_change", args=[written.pk])).content.decode()
    assert "Do c." in history
    assert "Do it well." in history
    assert 'name="_save"' not in history


def test_what_is_as_it_was_leaves_no_trace(plan: ExecutionPlan, owner: User) -> None:
    send(signed_in(owner), plan, "update", step="c", **step_fields("update", action="Do c.", reads="b"))
    assert not PlanChange.objects.exists()
    assert [event["event"] for event in events_of(plan)] == ["plan_created"]


def test_a_step_is_removed_and_steps_are_reordered(owner: User) -> None:
    plan = hold_plan(llm_step("a"), llm_step("b", reads=("a",)), llm_step("c", reads=("a",)), owner=owner)
    client = signed_in(owner)
    assert send(client, plan, "reorder", **{"order-keys": "a\nc\nb"}).status_code == 302
    assert [key for _, key, _ in shape(plan)] == ["a", "c", "b"]
    assert send(client, plan, "remove", step="a").status_code == 302
    assert [(key, reads) for _, key, reads in shape(plan)] == [("c", []), ("b", [])]
    assert list(PlanChange.objects.order_by("pk").values_list("action", flat=True)) == ["reorder", "remove"]


@pytest.mark.parametrize(
    ("op", "fields", "field", "says"),
    [
        ("insert", step_fields("insert", key="a", kind="llm"), "insert.key", "used by another step"),
        (
            "insert",
            step_fields("insert", key="n", kind="llm", after="c", reads="zz"),
            "insert.reads",
            "no earlier step",
        ),
        ("insert", step_fields("insert", key="n", kind="llm", after="c", args="[1]"), "insert.args", "A JSON object"),
        ("insert", step_fields("insert", key="n", kind="data", after="c"), "insert.kind", "not one of the available"),
        ("insert", step_fields("insert", key="n", kind="llm", action=""), "insert.action", "required"),
        ("update", step_fields("update", reads="c"), "update.reads", "is no earlier step"),
        ("update", step_fields("update", tool_name="no_such", reads="a"), "update.tool_name", "no tool"),
        ("reorder", {"order-keys": "a b"}, "order.keys", "every pending step once"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    plan: ExecutionPlan, owner: User, op: str, fields: dict[str, Any], field: str, says: str
) -> None:
    response = send(signed_in(owner), plan, op, step="b", **fields)
    assert response.status_code == 200
    form, name = field.split(".")
    assert says in str(getattr(response.context["page"], form).errors[name])
    assert says in response.content.decode()
    assert shape(plan) == [(1, "a", []), (2, "b", ["a"]), (3, "c", ["b"])]
    assert not PlanChange.objects.exists()


@pytest.mark.parametrize("status", ["running", "completed", "failed", "waiting_approval"])
def test_what_has_begun_is_refused(plan: ExecutionPlan, owner: User, status: str) -> None:
    PlanStep.objects.filter(plan=plan, key="a").update(status=status, llm_synthesis="said")
    client = signed_in(owner)
    page = client.get(page_of(plan), {"step": "a"}).content.decode()
    assert "what has begun never changes" in page
    assert "update-action" not in page
    changed = send(client, plan, "update", step="a", **step_fields("update", action="Another."))
    removed = send(client, plan, "remove", step="a")
    assert (changed.status_code, removed.status_code) == (409, 409)
    assert "the step has begun" in str(removed.context["page"].row_errors["a"])
    inserted = send(client, plan, "insert", **step_fields("insert", key="n", kind="llm", after=""))
    assert inserted.status_code == 302
    assert PlanStep.objects.get(plan=plan, key="a").action == "Do a."
    assert PlanStep.objects.get(plan=plan, key="a").order == 1
    assert list(PlanChange.objects.values_list("action", flat=True)) == ["insert"]  # before what is pending


def test_the_page_shows_plain_text_and_kinds_as_the_plan_page_names_them(plan: ExecutionPlan, owner: User) -> None:
    ExecutionPlan.objects.filter(pk=plan.pk).update(goal="Look at `auth`.")
    PlanStep.objects.filter(plan=plan).update(action="Survey `auth`.")
    client = signed_in(owner)
    page = client.get(page_of(plan)).content.decode()
    assert "`" not in page
    assert "Survey auth." in page
    assert "<td>LLM</td>" in page
    refused = send(client, plan, "insert", **step_fields("insert", key="a b", kind="llm", after="c"))
    assert refused.context["page"].insert.errors["key"] == ["1 to 64 letters, digits, _ or -"]
    assert "Survey `auth`." in client.get(page_of(plan), {"step": "b"}).content.decode(), (
        "what is edited is shown as it is"
    )
    PlanStep.objects.filter(plan=plan, key="a").update(status="running")
    stale = send(client, plan, "update", step="a", **step_fields("update")).content.decode()
    assert "what has begun never changes. The steps below are as they are now." in stale


def test_nobody_writes_over_what_another_has_changed_meanwhile(plan: ExecutionPlan, owner: User) -> None:
    client = signed_in(owner)
    read = ExecutionPlan.objects.get(pk=plan.pk).revision
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="update", key="c", fields={"action": "Theirs."})], by=owner)
    mine = {"op": "update", "step": "c", "revision": read, **step_fields("update", action="Mine.", reads="b")}
    response = client.post(page_of(plan), mine)
    assert (response.status_code, "changed the plan meanwhile" in response.content.decode()) == (409, True)
    assert PlanStep.objects.get(plan=plan, key="c").action == "Theirs."
    now = response.context["plan"].revision
    assert client.post(page_of(plan), {**mine, "revision": now}).status_code == 302
    assert PlanStep.objects.get(plan=plan, key="c").action == "Mine."


class Shown(HTMLParser):
    """What a browser would send of one form of a page as it stands."""

    def __init__(self, page: str, form: str) -> None:
        super().__init__()
        self.form, self.inside, self.field = form, False, ""
        self.fields: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value") or ""
        if tag == "form":
            self.inside = given.get("id") == self.form
        elif not self.inside:
            return
        elif tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            self.fields[name] = value or ("on" if given.get("type") == "checkbox" else "")
        elif tag in {"textarea", "select"}:
            self.field = name
            self.fields[name] = ""
        elif tag == "option" and "selected" in given:
            self.fields[self.field] = value

    def handle_data(self, data: str) -> None:
        if self.inside and self.lasttag == "textarea" and self.field:
            self.fields[self.field] += data.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in {"textarea", "select"}:
            self.field = ""


def sent_from(client: Client, plan: ExecutionPlan, answer: Any, op: str, **fields: Any) -> Any:
    """Send a form of a page that was answered, as a browser does, with these fields typed over."""
    lines = {name: text.replace("\n", "\r\n") for name, text in Shown(answer.content.decode(), op).fields.items()}
    return client.post(page_of(plan), {**lines, "op": op, **fields})


def test_a_second_save_reverts_nothing_that_another_has_changed(plan: ExecutionPlan, owner: User) -> None:
    PlanStep.objects.filter(plan=plan, key="c").update(action="Do c.\nThen look.", args_json={"n": [1, 2]})
    client = signed_in(owner)
    page = client.get(page_of(plan), {"step": "c"})
    theirs = {"tier": "planning", "is_critical": False, "args": {"n": [3]}, "reads": ["a"]}
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="update", key="c", fields=theirs)], by=owner)
    refused = sent_from(client, plan, page, "update", **{"update-action": "Mine."})
    assert refused.status_code == 409
    assert sent_from(client, plan, refused, "update").status_code == 302
    step = PlanStep.objects.get(plan=plan, key="c")
    assert (step.action, step.tier, step.is_critical) == ("Mine.", "planning", False)
    assert (step.args_json, step.reads) == ({"n": [3]}, ["a"])


def test_who_has_typed_over_the_same_field_is_told_what_it_says_by_now(plan: ExecutionPlan, owner: User) -> None:
    client = signed_in(owner)
    page = client.get(page_of(plan), {"step": "c"})
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="update", key="c", fields={"action": "Theirs."})], by=owner)
    refused = sent_from(client, plan, page, "update", **{"update-action": "Mine.", "update-tier": "field"})
    errors = refused.context["page"].update.errors
    assert (errors["action"], "tier" in errors) == (["By now it says: Theirs."], False)


def test_a_form_that_is_refused_for_what_it_says_keeps_what_it_was_made_from(plan: ExecutionPlan, owner: User) -> None:
    client = signed_in(owner)
    page = client.get(page_of(plan), {"step": "c"})
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="update", key="c", fields={"action": "Theirs."})], by=owner)
    refused = sent_from(client, plan, page, "update", **{"update-action": ""})
    assert refused.status_code == 200
    assert sent_from(client, plan, refused, "update", **{"update-action": "Mine."}).status_code == 409
    assert PlanStep.objects.get(plan=plan, key="c").action == "Theirs."


def test_what_nobody_has_typed_is_no_change(plan: ExecutionPlan, owner: User) -> None:
    PlanStep.objects.filter(plan=plan, key="c").update(action="Do c.\nThen look.", args_json={"n": [1, 2]})
    client = signed_in(owner)
    page = client.get(page_of(plan), {"step": "c"})
    assert sent_from(client, plan, page, "update").status_code == 302
    assert not PlanChange.objects.exists()


def test_an_order_that_another_has_changed_is_shown_anew(owner: User) -> None:
    plan = hold_plan(*[llm_step(key, reads=()) for key in "abc"], owner=owner)
    client = signed_in(owner)
    page = client.get(page_of(plan))
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="reorder", keys=("c", "a", "b"))], by=owner)
    refused = sent_from(client, plan, page, "reorder", **{"order-keys": "b, a, c"})
    assert refused.status_code == 409
    assert "You sent: b, a, c." in refused.content.decode()
    assert sent_from(client, plan, refused, "reorder").status_code == 302
    assert [key for _, key, _ in shape(plan)] == ["c", "a", "b"]


@pytest.mark.parametrize("revision", ["", "x", "-1", "9" * 30, "9" * 5_000])
def test_what_is_no_revision_is_none_of_the_plan(plan: ExecutionPlan, owner: User, revision: str) -> None:
    fields = {"op": "remove", "step": "c", "revision": revision}
    assert signed_in(owner).post(page_of(plan), fields).status_code == 409
    assert len(shape(plan)) == 3


def test_what_cannot_be_done_to_steps_is_a_bad_request(plan: ExecutionPlan, owner: User) -> None:
    assert send(signed_in(owner), plan, "explode", step="c").status_code == 400


def test_an_ended_plan_stays_as_it_is(plan: ExecutionPlan, owner: User) -> None:
    ExecutionPlan.objects.filter(pk=plan.pk).update(status="cancelled", ended_at=plan.created_at)
    client = signed_in(owner)
    assert client.get(page_of(plan), follow=True).redirect_chain[0][0] == shown(plan)
    send(client, plan, "remove", step="c")
    assert len(shape(plan)) == 3
    assert page_of(plan) not in client.get(shown(plan)).content.decode()


def test_who_may_look_at_all_plans_may_not_change_them(plan: ExecutionPlan) -> None:
    looker = staff(*VIEWS, "view_all")
    Membership.objects.create(user=looker, workspace=plan.workspace)
    client = signed_in(looker)
    assert client.get(shown(plan)).status_code == 200
    assert page_of(plan) not in client.get(shown(plan)).content.decode()
    assert client.get(page_of(plan)).status_code == 403
    assert send(client, plan, "remove", step="c").status_code == 403
    looker.user_permissions.add(Permission.objects.get(codename="adapt_executionplan"))
    assert send(client, plan, "remove", step="c").status_code == 302
    assert PlanChange.objects.get().by == looker


def test_a_plan_says_whether_and_by_whom_it_may_be_changed(plan: ExecutionPlan, owner: User) -> None:
    client = signed_in(owner)
    ExecutionPlan.objects.filter(pk=plan.pk).update(adapt_permission="capstan_plan.retry_executionplan")
    assert client.get(page_of(plan)).status_code == 403
    owner.user_permissions.add(Permission.objects.get(codename="retry_executionplan"))
    assert client.get(page_of(plan)).status_code == 200
    ExecutionPlan.objects.filter(pk=plan.pk).update(adaptable=False)
    assert client.get(page_of(plan)).status_code == 403
    assert send(client, plan, "remove", step="c").status_code == 403
    assert len(shape(plan)) == 3


@pytest.mark.parametrize("superuser", [False, True])
def test_a_plan_of_another_workspace_is_not_there(plan: ExecutionPlan, superuser: bool) -> None:
    stranger = staff(*VIEWS, "view_all", "adapt_executionplan")
    stranger.is_superuser = superuser
    stranger.save()
    make_workspace(stranger)
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="remove", key="c")], by=plan.owner)
    client = signed_in(stranger)
    assert client.get(page_of(plan)).status_code == 404
    assert send(client, plan, "remove", step="b").status_code == 404
    assert [key for _, key, _ in shape(plan)] == ["a", "b"]
    assert client.get(reverse("admin:capstan_plan_planchange_changelist")).context["cl"].result_count == 0


def test_staff_without_a_view_of_plans_and_others_get_nowhere(plan: ExecutionPlan, owner: User) -> None:
    owner.user_permissions.clear()
    assert signed_in(owner).get(page_of(plan)).status_code == 403
    User.objects.filter(pk=owner.pk).update(is_staff=False)
    assert "/login/" in signed_in(owner).get(page_of(plan))["Location"]


def test_rows_of_steps_and_of_the_audit_cannot_be_typed_over(plan: ExecutionPlan, owner: User) -> None:
    adapt_plan(plan_id=plan.pk, changes=[StepChange(op="remove", key="c")], by=owner)
    owner.user_permissions.set(Permission.objects.filter(content_type__app_label="capstan_plan"))
    client = signed_in(owner)
    step, change = PlanStep.objects.of(plan.pk)[0], PlanChange.objects.get()
    forged = {
        "steps-TOTAL_FORMS": 1,
        "steps-INITIAL_FORMS": 1,
        "steps-0-id": step.pk,
        "steps-0-action": "Forged.",
        "goal": "Forged.",
    }
    assert client.post(shown(plan), forged).status_code == 403
    audit = reverse("admin:capstan_plan_planchange_change", args=[change.pk])
    assert client.post(audit, {"action": "insert"}).status_code == 403
    assert client.get(reverse("admin:capstan_plan_planchange_add")).status_code == 403
    assert client.post(reverse("admin:capstan_plan_planchange_delete", args=[change.pk])).status_code == 403
    step.refresh_from_db()
    change.refresh_from_db()
    assert (step.action, change.action) == ("Do a.", "remove")


def test_no_text_of_a_step_acts_in_the_admin(plan: ExecutionPlan, owner: User) -> None:
    hostile = "<script>alert(1)</script>"
    fields = step_fields("insert", key="new", after="c", kind="llm", action=hostile)
    send(signed_in(owner), plan, "insert", **fields)
    for address in (page_of(plan), f"{page_of(plan)}?step=new", shown(plan)):
        page = signed_in(owner).get(address).content.decode()
        assert hostile not in page
        assert "&lt;script&gt;alert(1)" in page
