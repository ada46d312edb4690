"""Recipes: named, versioned task guidance between identity and dynamic context (CAP-022).

A version is never changed: saving an edit makes the next version, and runs pin the version they began with.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from prompt.errors import UnknownRecipe


class WorkflowTemplateQuerySet(models.QuerySet["WorkflowTemplate"]):
    def resolve(self, name: str, version: int | None = None) -> WorkflowTemplate:
        """The recipe called `name`: the pinned version, or the active one.

        Raises:
            UnknownRecipe: there is none.
        """
        wanted = Q(name=name, is_active=True) if version is None else Q(name=name, version=version)
        recipe = self.filter(wanted).first()
        if recipe is None:
            raise UnknownRecipe(recipe=name, version=version)
        return recipe


class WorkflowTemplate(models.Model):
    """One version of a recipe.

    `required_tools` are names the agent must have; `expected_steps` are shown to the model; `validators` are names
    registered in `prompt.validate`, run before any model call (CAP-023).
    """

    name = models.SlugField(max_length=64)
    version = models.PositiveIntegerField(default=1)
    prompt_template = models.TextField()
    required_tools = models.JSONField(default=list, blank=True)
    expected_steps = models.JSONField(default=list, blank=True)
    validators = models.JSONField(default=list, blank=True)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = WorkflowTemplateQuerySet.as_manager()

    class Meta:
        ordering = ("name", "-version")
        constraints = (
            models.UniqueConstraint(fields=("name", "version"), name="one_recipe_a_version"),
            models.UniqueConstraint(fields=("name",), condition=Q(is_active=True), name="one_active_recipe"),
        )

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"

    @property
    def steps(self) -> list[str]:
        return [str(step) for step in self.expected_steps]
