"""The list of model calls."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from observability.models import AgentInteraction, OwnerKind
from tests.support.runs import make_user, make_workspace


@pytest.mark.django_db
def test_what_a_call_took_and_cost_comes_first_and_a_command_has_no_number():
    user = make_user(is_staff=True, is_superuser=True)
    call = {"workspace": make_workspace(user), "user": user, "provider": "p", "model": "m" * 60, "latency_ms": 1234}
    AgentInteraction.objects.create(**call, owner_kind=OwnerKind.COMMAND, owner_id=0, correlation_id="c0ffee" * 5)
    AgentInteraction.objects.create(**call, owner_kind=OwnerKind.TURN, owner_id=7)
    browser = Client()
    browser.force_login(user)
    page = browser.get(reverse("admin:capstan_observability_agentinteraction_changelist")).content.decode()
    owners = re.findall(r'class="field-owner[^"]*">([^<]*)<', page)
    assert sorted(owners) == ["command", "turn 7"]
    columns = re.findall(r"column-(\w+)", page)
    assert max(map(columns.index, ("latency", "cost", "correlation"))) < columns.index("input_tokens")
    assert '<a href="?q=c0ffee' in page
    assert re.search(r'class="field-short_model[^"]*">(?:<[^>]*>)?m{19}…<', page)
