"""`extract_elements` in this process, on a scripted model."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.management import CommandError, call_command

from catalog.management.commands.extract_elements import Command
from catalog.models import CandidateVerdict, ChangeSet, Element, Relation, Repository, Scan
from llm.testing import ScriptedLLM
from tests.catalog.agents import agent_of
from workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, as the shell would see it."""

    code: int
    out: str
    error: str
    remarks: str = ""


def extract_elements(path: Path, workspace: Workspace, llm: ScriptedLLM, *args: str, **options: Any) -> Ended:
    """Run the command; `manage.py` turns a CommandError into this exit code."""
    out, err = io.StringIO(), io.StringIO()
    command = Command(stdout=out, stderr=err, agent=lambda owner: agent_of(llm, owner))
    try:
        call_command(command, str(path), *args, workspace=workspace.slug, **options)
    except CommandError as exc:
        return Ended(exc.returncode, out.getvalue(), str(exc))
    return Ended(0, out.getvalue(), "", err.getvalue())


def domain_rows(workspace: Workspace) -> dict[str, list[Any]]:
    """Everything the catalogue keeps for a workspace, to compare before and after."""
    models = (Repository, Scan, Element, Relation, ChangeSet, CandidateVerdict)
    return {m.__name__: list(m._default_manager.filter(workspace=workspace).order_by("pk").values()) for m in models}
