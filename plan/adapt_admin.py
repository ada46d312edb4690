"""Changing a plan's pending steps in the admin: one change a form, each through `plan.adapting` (CAP-055)."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.validators import MaxLengthValidator
from django.db.models import BigIntegerField
from django.forms.fields import InvalidJSONInput
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from llm.jsonish import strict
from plan.adapting import adapt_plan, may_adapt, spec_of
from plan.creation import unholdable
from plan.errors import NotAdaptable, PlanConflict, PlanInvalid
from plan.models import ExecutionPlan, PlanStep, StepKind, StepStatus
from plan.types import StepChange
from tools.toolset import tools_of
from workspaces.models import User
from workspaces.readonly import RunAdmin

TEXT = 4_000  # characters of an action
FRONT = ""  # where the pending steps begin
NOTHING = "-"  # typed for "reads nothing", where leaving the field empty means something else
TIERS = [("", "the kind's own"), ("planning", "planning"), ("execution", "execution"), ("field", "field")]


class KeysField(forms.CharField):
    """Keys of steps, by commas, blanks or lines."""

    default_validators = [MaxLengthValidator(64)]

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list | tuple) else value

    def to_python(self, value: Any) -> Any:
        return re.split(r"[\s,]+", value.strip()) if value and value.strip() else []

    def run_validators(self, value: Any) -> None:
        for key in value:
            super().run_validators(key)


class ArgumentsField(forms.JSONField):
    """JSON that a row can hold and our own code can walk; what is none is shown again as it was typed."""

    def to_python(self, value: Any) -> Any:
        if not isinstance(value, str) or value in self.empty_values:
            return super().to_python(value)
        try:
            read = strict(value)
        except ValueError as exc:
            raise forms.ValidationError(f"No valid JSON: {str(exc).partition('; use ')[0]:.200}.") from exc
        if faults := [f"{at!r} {problem}." for at, problem in unholdable(read)]:
            raise forms.ValidationError(faults)
        return read

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return self.to_python(data)
        except forms.ValidationError:
            return InvalidJSONInput(data)


class StepForm(forms.Form):
    """What may be said of a pending step; the fields have `StepSpec`'s names."""

    action = forms.CharField(max_length=TEXT, widget=forms.Textarea(attrs={"rows": 3, "cols": 80}))
    reads = KeysField(required=False, help_text="Keys of earlier steps, by commas. Empty: it reads nothing.")
    is_critical = forms.BooleanField(required=False, label="Critical", help_text="If it fails, the plan fails.")
    tool_name = forms.CharField(required=False, max_length=128, label="Tool")
    args = ArgumentsField(required=False, label="Arguments", widget=forms.Textarea(attrs={"rows": 3, "cols": 80}))
    recipe = forms.CharField(required=False, max_length=64)
    tier = forms.ChoiceField(required=False, choices=TIERS)

    def clean_args(self) -> dict[str, Any]:
        args = self.cleaned_data["args"]
        if args is None:
            return {}
        if not isinstance(args, dict):
            raise forms.ValidationError("A JSON object, such as {}.")
        return args


class UpdateForm(StepForm):
    """A step as it stands. Its page tells what each field showed, so that what a person typed is known."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.show_hidden_initial = True

    @property
    def typed(self) -> list[str]:
        """Fields that say something else than what their page showed; of a page that told nothing, all."""
        told = {bound.name for bound in self if bound.html_initial_name in self.data}
        return [name for name in self.fields if name in self.changed_data or name not in told]


class InsertForm(StepForm):
    """A new step and its place."""

    key = forms.CharField(max_length=64, help_text="Letters, digits, _ and -; used by no other step of the plan.")
    after = forms.ChoiceField(required=False, label="Behind")
    kind = forms.ChoiceField(choices=StepKind.choices, initial=StepKind.LLM)
    field_order = ("key", "after", "kind")

    def __init__(self, *args: Any, plan: ExecutionPlan, steps: list[PlanStep], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        behind = [(step.key, f"{step.order}. {step.key}") for step in steps]
        self.fields["after"].choices = [(FRONT, "before all pending steps"), *behind]  # type: ignore[attr-defined]
        self.fields["after"].initial = steps[-1].key if steps else FRONT
        self.fields["is_critical"].initial = True
        self.fields["args"].initial = {}
        self.fields[
            "reads"
        ].help_text = (
            f"Keys of earlier steps, by commas. Empty: the step it stands behind. “{NOTHING}”: it reads nothing."
        )
        if not plan.template:
            kinds = [choice for choice in StepKind.choices if choice[0] != StepKind.DATA]
            self.fields["kind"].choices = kinds  # type: ignore[attr-defined]


class OrderForm(forms.Form):
    keys = KeysField(
        label="Pending steps",
        help_text="Every pending step once, in the new order.",
        widget=forms.Textarea(attrs={"rows": 6, "cols": 80}),
    )


class RevisionForm(forms.Form):
    """Which plan the page showed; what is no revision is none of this plan's."""

    revision = forms.IntegerField(min_value=0, max_value=BigIntegerField.MAX_BIGINT)


class AdaptableAdmin(RunAdmin):
    """Adds the page on which people change pending steps."""

    change_form_template = "admin/capstan_plan/executionplan/change_form.html"

    def get_urls(self) -> list[URLPattern]:
        adapt = self.admin_site.admin_view(self.adapt_view)
        return [path("<int:pk>/adapt/", adapt, name="capstan_plan_executionplan_adapt"), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        plan = self.get_object(request, object_id)
        adaptable = plan is not None and not plan.ended and may_adapt(plan, _user(request))
        return super().change_view(
            request, object_id, form_url, {**(extra_context or {}), "adaptable": adaptable and plan}
        )

    def adapt_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show the steps, and take one change.

        Raises:
            Http404: no such plan, or none that the user may see.
            PermissionDenied: the plan may not be adapted, or not by this user.
            BadRequest: nothing of that name can be done to the steps.
        """
        user = _user(request)
        if not self.has_view_permission(request):
            raise PermissionDenied
        plan = self.get_queryset(request).select_related("workspace", "owner").filter(pk=pk).first()
        if plan is None:
            raise Http404
        if not may_adapt(plan, user):
            raise PermissionDenied
        if plan.ended:
            self.message_user(request, "The plan has ended; its steps stay as they are.", messages.WARNING)
            return HttpResponseRedirect(reverse("admin:capstan_plan_executionplan_change", args=[pk]))
        page = _Page(plan, request, user)
        if request.method == "POST" and (said := page.take()):
            self.message_user(request, said)
            return HttpResponseRedirect(request.path)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Change the pending steps of plan {plan.pk}",
            "opts": self.opts,
            "plan": plan,
            "page": page,
        }
        template = "admin/capstan_plan/executionplan/adapt.html"
        return TemplateResponse(request, template, context, status=409 if page.stale else 200)


class _Page:
    """The steps as they stand, the forms, and what is wrong with the one that was sent."""

    def __init__(self, plan: ExecutionPlan, request: HttpRequest, user: User) -> None:
        self.plan, self.user = plan, user
        self.sent = request.POST if request.method == "POST" else None
        self.op = self.sent.get("op", "") if self.sent is not None else ""
        self.steps = list(PlanStep.objects.of(plan.pk))
        self.stale = ""
        self.known = RevisionForm(self.sent)
        self.row_errors: dict[str, list[str]] = {}
        key = (request.POST if self.sent is not None else request.GET).get("step", "")
        self.step = next((step for step in self.steps if step.key == key), None)
        self.insert = InsertForm(self._data("insert"), prefix="insert", plan=plan, steps=self.steps)
        self.order = OrderForm(self._data("reorder"), prefix="order", initial={"keys": self._pending()})
        self.update = self._update_form(bound=self.op == "update")

    @property
    def rows(self) -> list[tuple[PlanStep, bool, list[str]]]:
        """Each step, whether it may change still, and why its removal was refused."""
        return [(step, _untouched(step), self.row_errors.get(step.key, [])) for step in self.steps]

    @property
    def revision(self) -> int:
        """Of the plan that the forms show: a form that is refused for what it says shows what it was made from."""
        shown = not self.stale and self.known.is_valid()
        return int(self.known.cleaned_data["revision"]) if shown else self.plan.revision

    def take(self) -> str:
        """Carry out what was sent; what to say then, empty when it was refused."""
        assert self.sent is not None
        takes = {"insert": self._insert, "update": self._update, "reorder": self._reorder, "remove": self._remove}
        if self.op not in takes:
            raise BadRequest(f"op: one of {', '.join(takes)}")
        return takes[self.op]()

    def _data(self, op: str) -> Any:
        return self.sent if self.op == op else None

    def _pending(self) -> list[str]:
        return [step.key for step in self.steps if step.status == StepStatus.PENDING]

    def _update_form(self, *, bound: bool) -> UpdateForm | None:
        if self.step is None or not _untouched(self.step):
            return None
        spec = spec_of(self.step)
        initial = {name: getattr(spec, name) for name in StepForm.base_fields}
        return UpdateForm(self.sent if bound else None, prefix="update", initial=initial)

    def _insert(self) -> str:
        form = self.insert
        if not form.is_valid():
            return ""
        fields = dict(form.cleaned_data)
        key, after = fields.pop("key"), fields.pop("after") or None
        if fields["reads"] == [NOTHING]:
            fields["reads"] = []
        elif not fields["reads"]:
            del fields["reads"]
        done = self._adapt(StepChange(op="insert", key=key, after=after, fields=fields), form, at="after")
        return f"Step {key} was inserted." if done else ""

    def _update(self) -> str:
        form, step = self.update, self.step
        if form is None or step is None:
            self._look_again("that step has begun or is gone; what has begun never changes")
            return ""
        if not form.is_valid():
            return ""
        spec = spec_of(step)
        new = {name: tuple(value) if name == "reads" else value for name, value in form.cleaned_data.items()}
        changed = {name: new[name] for name in form.typed if new[name] != getattr(spec, name)}
        if not changed:
            return f"Step {step.key} is as it was."
        done = self._adapt(StepChange(op="update", key=step.key, fields=changed), form)
        return f"Step {step.key} was changed: {', '.join(changed)}." if done else ""

    def _reorder(self) -> str:
        form = self.order
        if not form.is_valid():
            return ""
        done = self._adapt(StepChange(op="reorder", keys=tuple(form.cleaned_data["keys"])), form, at="keys")
        return "The pending steps have a new order." if done else ""

    def _remove(self) -> str:
        key = self.step.key if self.step is not None else ""
        done = self._adapt(StepChange(op="remove", key=key), None)
        return f"Step {key} was removed." if done else ""

    def _adapt(self, change: StepChange, form: forms.Form | None, *, at: str | None = None) -> bool:
        """Whether the service did it; else what it says is shown at the field it is about, or at `at`."""
        try:
            adapt_plan(
                plan_id=self.plan.pk,
                changes=[change],
                by=self.user,
                known_tools=tools_of(self.plan.workspace).names(),
                revision=self.known.cleaned_data["revision"] if self.known.is_valid() else -1,
            )
        except NotAdaptable as exc:
            raise PermissionDenied from exc
        except PlanConflict as exc:
            reason = str(exc.details.get("reason") or f"the plan is {exc.details.get('status')} by now")
            self._refuse(change.key, self._look_again(reason, form), at, reason)
        except PlanInvalid as exc:
            problems = exc.details["problems"]
            for problem in problems if isinstance(problems, list) else [problems]:
                self._refuse(change.key, form, at, str(problem).replace("`", ""))  # the admin shows no Markdown
        else:
            return True
        return False

    def _look_again(self, why: str, form: forms.Form | None = None) -> forms.Form | None:
        """Read the plan anew; the form that was sent, with what stands there now in place of what it showed."""
        self.stale = why
        self.plan.refresh_from_db()
        self.steps = list(PlanStep.objects.of(self.plan.pk))
        self.step = next((step for step in self.steps if self.step is not None and step.key == self.step.key), None)
        if form is self.order:
            self.order = self._order_now(form)
            return self.order
        if form is self.update and form is not None:
            self.update = self._update_now(form)
            return self.update
        return form

    def _update_now(self, sent: UpdateForm) -> UpdateForm | None:
        """What the step says now, and of what was sent only what its sender typed."""
        now = self._update_form(bound=False)
        if now is None:
            return None
        data: dict[str, Any] = {}
        theirs: dict[str, str] = {}
        for bound in now:
            value, typed = bound.value(), bound.name in sent.typed
            data |= {bound.html_initial_name: value, bound.html_name: sent[bound.name].data if typed else value}
            if typed and str(value) != str(sent.data.get(bound.html_initial_name, "")).replace("\r\n", "\n"):
                theirs[bound.name] = f"By now it says: {value}"
        form = UpdateForm(data, prefix=now.prefix, initial=now.initial)
        for name, said in theirs.items():
            form.add_error(name, said)
        return form

    def _order_now(self, sent: forms.Form) -> OrderForm:
        """The order as it is now; what was sent is told beside it."""
        keys = self._pending()
        now = OrderForm({"order-keys": ", ".join(keys)}, prefix="order", initial={"keys": keys})
        now.add_error("keys", f"You sent: {', '.join(sent.cleaned_data['keys'])}.")
        return now

    def _refuse(self, key: str, form: forms.Form | None, at: str | None, problem: str) -> None:
        if form is None:
            self.row_errors.setdefault(key, []).append(problem)
            return
        about, _, rest = problem.removeprefix(f"{key}: ").partition(": ")
        if rest and about in form.fields:
            form.add_error(about, rest)
        else:
            form.add_error(at, problem)


def _untouched(step: PlanStep) -> bool:
    return step.status == StepStatus.PENDING and step.started_at is None


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
