"""The catalogue's first recipes (CAP-022); later versions are published in the admin."""

from typing import Any

from django.db import migrations

READING = ["search_elements", "get_element", "list_dependencies"]
RECIPES: list[dict[str, Any]] = [
    {
        "name": "analyse-area",
        "prompt_template": (
            "Analyse one area of the code, as the catalogue knows it.\n"
            "Find its elements first; read each that matters, and its dependencies in both directions.\n"
            "Say what the area is for, which elements carry it, who depends on it and on what it depends, and where it is"
            " entangled: cycles, elements that many others lean on, modules that reach past their package.\n"
            "Name every element by its key. What the catalogue does not tell, say so; never guess at code."
        ),
        "required_tools": READING,
        "expected_steps": [
            "find the area's elements",
            "read the elements that carry it",
            "follow its dependencies both ways",
            "say what was found",
        ],
    },
    {
        "name": "refactor-plan",
        "prompt_template": (
            "Propose a refactoring of one area in steps that can each be merged alone.\n"
            "Start from the earlier findings. For each step name the elements it touches by key, what becomes better, what"
            " may break (who depends on them), and how somebody would notice.\n"
            "Put the steps in the order in which they can be done. Prefer few steps that pay over many that do not."
        ),
        "required_tools": READING,
        "expected_steps": ["take up the findings", "check who depends on what changes", "order the steps"],
    },
    {
        "name": "tidy-catalogue",
        "prompt_template": (
            "Look for elements whose names mislead or that do not belong into the catalogue, and propose one change set for"
            " all of them with the reason for each. A person applies it; never say that it is done."
        ),
        "required_tools": [*READING, "propose_changeset"],
        "expected_steps": ["look through the elements", "propose one change set"],
    },
]


def publish(apps: Any, schema_editor: Any) -> None:
    """Add each recipe whose name nobody has used."""
    template = apps.get_model("capstan_prompt", "WorkflowTemplate")
    for recipe in RECIPES:
        if not template.objects.filter(name=recipe["name"]).exists():
            template.objects.create(version=1, is_active=True, **recipe)


class Migration(migrations.Migration):
    dependencies = [("capstan_catalog", "0001_initial"), ("capstan_prompt", "0001_initial")]
    operations = [migrations.RunPython(publish, migrations.RunPython.noop)]
