"""Writes: the next version of a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection, transaction
from django.db.models import Max

from prompt.errors import InputInvalid
from prompt.models import WorkflowTemplate
from prompt.validate import validators as known_validators


@transaction.atomic
def publish_recipe(
    *,
    name: str,
    prompt_template: str,
    required_tools: Sequence[str] = (),
    expected_steps: Sequence[str] = (),
    validators: Sequence[str] = (),
) -> WorkflowTemplate:
    """Store a recipe as the next version of its name and make it the active one; earlier versions stay as they were.

    Raises:
        InputInvalid: the text is blank, or a validator has no such name.

    Source: CAP-022.
    """
    problems = [] if prompt_template.strip() else ["prompt_template: is blank"]
    problems += [
        f"validators: {v!r} is not one of {sorted(known_validators)}" for v in validators if v not in known_validators
    ]
    if problems:
        raise InputInvalid(recipe=name, problems=problems)
    with connection.cursor() as cursor:  # two editors of one recipe take turns
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"recipe:{name}"])
    rows = WorkflowTemplate.objects.filter(name=name)
    last = rows.aggregate(last=Max("version"))["last"] or 0
    rows.filter(is_active=True).update(is_active=False)
    return WorkflowTemplate.objects.create(
        name=name,
        version=last + 1,
        prompt_template=prompt_template,
        required_tools=list(required_tools),
        expected_steps=list(expected_steps),
        validators=list(validators),
    )
