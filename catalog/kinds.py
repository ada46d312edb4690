"""Tells models, views, tasks, commands and apps from plain classes and functions, without importing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from catalog.parse import Definition, ParsedFile
from catalog.types import Kind

ROOTS: Mapping[str, Kind] = {
    "django.db.models.Model": "model",
    "django.db.models.base.Model": "model",
    "django.contrib.gis.db.models.Model": "model",
    "django.views.View": "view",
    "django.views.generic.View": "view",
    "django.views.generic.base.View": "view",
    "rest_framework.views.APIView": "view",
    "rest_framework.viewsets.ViewSetMixin": "view",
    "django.apps.AppConfig": "app",
    "django.apps.config.AppConfig": "app",
    "django.core.management.BaseCommand": "command",
    "django.core.management.base.BaseCommand": "command",
    "celery.Task": "task",
    "celery.app.task.Task": "task",
}
# Outside the scanned tree no base class can be followed, so these packages' own classes count by their module.
PREFIXES: Mapping[str, Kind] = {
    "django.views.generic.": "view",
    "rest_framework.generics.": "view",
    "rest_framework.viewsets.": "view",
    "django.core.management.base.": "command",
    "django.contrib.auth.models.Abstract": "model",
    "django.contrib.auth.base_user.Abstract": "model",
}
TASK_DECORATORS = ("shared_task", "task", "periodic_task")


class Resolver:
    """Follows names through the tree's imports.

    Args:
        files: what was parsed.
    """

    def __init__(self, files: Sequence[ParsedFile]) -> None:
        self._aliases = {file.module.name: file.aliases for file in files}
        self._bases = {
            f"{file.module.name}.{d.name}": d.bases for file in files for d in file.definitions if d.is_class
        }

    def class_name(self, dotted: str) -> str:
        """The dotted name of the class where it is defined, re-exports followed; `dotted` when that is outside."""
        seen: set[str] = set()
        while dotted not in self._bases and dotted not in seen:
            seen.add(dotted)
            module, _, name = dotted.rpartition(".")
            dotted = self._aliases.get(module, {}).get(name, dotted)
        return dotted

    def is_known(self, dotted: str) -> bool:
        """Whether the tree defines this class."""
        return dotted in self._bases

    def kind_of_class(self, dotted: str) -> Kind | None:
        """The kind that a class inherits, None for a plain class."""
        pending, seen = [dotted], set()
        while pending:
            current = pending.pop(0)
            resolved = self.class_name(current)
            for name in (current, resolved):
                kind = ROOTS.get(name) or next((k for p, k in PREFIXES.items() if name.startswith(p)), None)
                if kind and name != dotted:
                    return kind
            if resolved not in seen:
                seen.add(resolved)
                pending.extend(self._bases.get(resolved, ()))
        return None


def kind_of(definition: Definition, module: str, resolver: Resolver) -> Kind:
    """What a class or function is.

    Args:
        definition: the class or function.
        module: dotted name of its module.
        resolver: of the whole tree.
    """
    if definition.is_class:
        if definition.name == "Command" and ".management.commands." in f"{module}.":
            return "command"
        return resolver.kind_of_class(f"{module}.{definition.name}") or "class"
    if any(d.rpartition(".")[2] in TASK_DECORATORS for d in definition.decorators):
        return "task"
    in_views = "views" in module.split(".")
    return "view" if in_views and definition.first_argument == "request" else "function"
