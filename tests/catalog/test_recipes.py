"""The recipes that come with the catalogue."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps

from factory.identities import PLANNER, identity
from prompt.models import WorkflowTemplate
from prompt.validate import check_recipe

recipes = import_module("catalog.migrations.0002_recipes")


@pytest.mark.django_db
def test_every_recipe_can_be_run_by_the_planner_and_none_replaces_an_edited_one() -> None:
    WorkflowTemplate.objects.all().delete()
    WorkflowTemplate.objects.create(name="analyse-area", version=3, prompt_template="Ours.", is_active=True)
    recipes.publish(apps, None)
    for recipe in recipes.RECIPES:
        stored = WorkflowTemplate.objects.resolve(recipe["name"])
        check_recipe(stored, identity(PLANNER))
    assert WorkflowTemplate.objects.resolve("analyse-area").prompt_template == "Ours."
    assert WorkflowTemplate.objects.resolve("refactor-plan").steps
