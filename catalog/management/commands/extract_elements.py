"""Scan a source tree into a workspace's catalogue (SC-02)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone
from tqdm import tqdm

from catalog import queries, services
from catalog.errors import CanonicalizeError, EmptyExtraction, ParseFailed, SourceUnusable, StaleChangeSet
from catalog.extract import Extraction, canonicalize, survey
from catalog.ports import FieldAgent
from catalog.prompts import D1_TONE
from catalog.types import Failure
from factory.errors import ExtractError
from factory.field import create_field_agent
from llm.errors import LLMError
from observability.correlation import correlated, new_correlation_id
from observability.types import CallOwner
from workspaces.errors import ConfigurationError
from workspaces.models import Workspace

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130

AgentFactory = Callable[[CallOwner], FieldAgent]


def _configured_agent(owner: CallOwner) -> FieldAgent:
    return create_field_agent(owner=owner, instructions=D1_TONE)


class Command(BaseCommand):
    """Exit codes: 0 done, 1 a source file or the model's answer could not be used, 2 nothing to scan at PATH or no such
    workspace, 130 interrupted. Nothing is written unless it is 0.

    Args:
        agent: makes the field agent for D1; the configured provider's by default.
    """

    help = "Scan a source tree and propose its architecture elements as a change set (--apply writes them)."

    def __init__(self, *args: Any, agent: AgentFactory = _configured_agent, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent = agent

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", help="folder of the source tree; nothing in it is executed")
        parser.add_argument("--workspace", required=True, help="slug of the workspace whose catalogue it goes into")
        parser.add_argument("--apply", action="store_true", help="apply the change set at once")
        parser.add_argument("--label", default="", help="name of the repository; default: the folder's name")
        parser.add_argument(
            "--exclude",
            action="append",
            default=[],
            metavar="PATTERN",
            help="leave out these relative paths; repeatable",
        )
        parser.add_argument("--ask-again", action="store_true", help="ask the model about unchanged candidates too")

    def handle(self, **options: Any) -> None:
        workspace = Workspace.objects.filter(slug=options["workspace"]).first()
        if workspace is None:
            raise CommandError(f"no workspace has the slug {options['workspace']!r}", returncode=UNUSABLE)
        with correlated(new_correlation_id()) as correlation_id:
            try:
                self._run(workspace, correlation_id, options)
            except KeyboardInterrupt:
                raise CommandError("interrupted; nothing was written", returncode=INTERRUPTED) from None
            except SourceUnusable as exc:
                raise CommandError(f"{options['path']}: {exc.details['reason']}", returncode=UNUSABLE) from exc
            except EmptyExtraction as exc:
                raise CommandError(f"{options['path']}: {exc.details['hint']}", returncode=UNUSABLE) from exc
            except ParseFailed as exc:
                raise CommandError(_parse_report(exc.failures), returncode=FAILED) from exc
            except (CanonicalizeError, ConfigurationError, ExtractError, LLMError, StaleChangeSet) as exc:
                raise CommandError(f"{exc}; nothing was written", returncode=FAILED) from exc

    def _run(self, workspace: Workspace, correlation_id: str, options: dict[str, Any]) -> None:
        started_at = timezone.now()
        owner = CallOwner(kind="command", id=0, workspace_id=workspace.pk, user_id=None, correlation_id=correlation_id)

        with _Bar("reading", "file") as files:
            surveyed = survey(options["path"], label=options["label"], exclude=options["exclude"], progress=files)
        known = queries.known_verdicts(workspace, surveyed.label)
        if options["ask_again"]:
            known = {key: verdict for key, verdict in known.items() if not verdict.digest}
        with _Bar("asking the model", "batch") as batches:
            extraction = canonicalize(surveyed, agent=self.agent(owner), known=known, progress=batches)
        self._write(workspace, extraction, correlation_id, started_at, apply=options["apply"])

    def _write(
        self, workspace: Workspace, extraction: Extraction, correlation_id: str, started_at: datetime, *, apply: bool
    ) -> None:
        now = timezone.now()
        with transaction.atomic():
            _, change_set = services.propose_changes(
                workspace=workspace,
                extraction=extraction,
                correlation_id=correlation_id,
                started_at=started_at,
                now=now,
            )
            if change_set and apply:
                services.apply_changeset(change_set_id=change_set.pk, workspace=workspace, by=None, now=now)
        for failure in extraction.ignored:
            self.stderr.write(f"left out, unparsable: {failure}")
        kept = extraction.counts["kept"]
        self.stdout.write(
            f"{extraction.label}: {extraction.files} files, {kept['elements']} elements, {kept['relations']} relations"
        )
        if change_set is None:
            self.stdout.write("0 add, 0 update, 0 delete (nothing to change)")
            return
        ops = f"{change_set.added} add, {change_set.updated} update, {change_set.deleted} delete"
        self.stdout.write(f"{ops} ({'applied' if apply else 'proposed'} as change set {change_set.pk})")


def _parse_report(failures: tuple[Failure, ...]) -> str:
    listed = "\n  ".join(str(f) for f in failures[:20])
    more = f"\n  and {len(failures) - 20} more" if len(failures) > 20 else ""
    return (
        f"{len(failures)} file(s) could not be read; nothing was written. Mend them, or leave them out with --exclude:"
        f"\n  {listed}{more}"
    )


class _Bar:
    """A progress bar on a terminal's stderr; silent elsewhere."""

    def __init__(self, label: str, unit: str) -> None:
        self._label = label
        self._unit = unit
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            hidden = not sys.stderr.isatty()
            self._bar = tqdm(total=total, desc=self._label, unit=self._unit, disable=hidden, file=sys.stderr)
        self._bar.update(done - self._bar.n if not self._bar.disable else 0)
