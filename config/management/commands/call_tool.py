from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from config.callers import caller_named
from factory.executors import build_executor
from factory.identities import PLANNER
from observability.correlation import new_correlation_id
from tools.doors import call_tool

EXIT_FAILED, EXIT_WAITS = 1, 3


class Command(BaseCommand):
    help = (
        "Call one tool as a user, through every policy; without a name, list the tools. Exit 3: it waits for a person."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", help="which tool")
        parser.add_argument("arguments", nargs="?", default="{}", help="a JSON object")
        parser.add_argument("--user", required=True, help="username of who calls")
        parser.add_argument("--workspace", default="", help="its slug; may be left out with one membership")
        parser.add_argument("--mode", default="workflow", choices=["conversation", "workflow"])
        parser.add_argument("--identity", default=PLANNER, help="whose tool set is offered")

    def handle(self, **options: Any) -> None:
        user, workspace = caller_named(options["user"], options["workspace"])
        executor = build_executor(options["identity"], mode=options["mode"], workspace=workspace)
        if options["name"] is None:
            for schema in executor.schemas():
                self.stdout.write(f"{schema['name']}\t{schema['description'].splitlines()[0]}")
            return
        try:
            arguments = json.loads(options["arguments"])
        except ValueError as exc:
            raise CommandError(f"the arguments are no JSON: {exc}") from exc
        if not isinstance(arguments, dict):
            raise CommandError("the arguments are no JSON object")
        done = call_tool(
            executor=executor,
            user=user,
            workspace=workspace,
            name=options["name"],
            arguments=arguments,
            door="command",
            correlation_id=new_correlation_id(),
            clock=timezone.now,
        )
        if done.approval is not None:
            raise CommandError(
                f"the call waits for a person: manage.py decide {done.approval.pk} approve --user …",
                returncode=EXIT_WAITS,
            )
        assert done.envelope is not None
        if not done.envelope["success"]:
            raise CommandError(done.envelope["error"] or "failed", returncode=EXIT_FAILED)
        self.stdout.write(json.dumps(done.envelope["result"], indent=2, ensure_ascii=False))
