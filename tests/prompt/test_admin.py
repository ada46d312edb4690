"""Recipes are edited in the admin; saving makes the next version (CAP-022)."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from prompt.models import WorkflowTemplate
from tests.support.runs import make_user

pytestmark = pytest.mark.django_db

FIELDS = {"name": "audit", "required_tools": "[]", "expected_steps": '["read", "judge"]', "validators": "[]"}


@pytest.fixture
def browser():
    signed_in = Client()
    signed_in.force_login(make_user(is_superuser=True, is_staff=True))
    return signed_in


def test_saving_makes_the_next_version_and_leaves_the_old_one(browser):
    added = browser.post(reverse("admin:capstan_prompt_workflowtemplate_add"), {**FIELDS, "prompt_template": "one"})
    assert added.status_code == 302
    first = WorkflowTemplate.objects.get(name="audit")
    address = reverse("admin:capstan_prompt_workflowtemplate_change", args=[first.pk])
    assert browser.get(address).status_code == 200
    changed = browser.post(address, {**FIELDS, "prompt_template": "two"})
    assert changed.status_code == 302
    versions = WorkflowTemplate.objects.filter(name="audit").order_by("version")
    assert [(row.version, row.prompt_template, row.is_active) for row in versions] == [
        (1, "one", False),
        (2, "two", True),
    ]
    assert browser.get(reverse("admin:capstan_prompt_workflowtemplate_changelist")).status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("required_tools", '"find"', "JSON list"),
        ("validators", '["nobody"]', "Not registered"),
        ("prompt_template", "", "required"),
    ],
)
def test_what_does_not_fit_is_said_beside_its_field(browser, field, value, said):
    sent = {**FIELDS, "prompt_template": "one", field: value}
    answer = browser.post(reverse("admin:capstan_prompt_workflowtemplate_add"), sent)
    assert answer.status_code == 200
    assert said in str(answer.context["adminform"].form.errors[field])
    assert not WorkflowTemplate.objects.filter(name="audit").exists()
