from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import anyio
from django.core.management.base import BaseCommand
from django.utils import timezone

from config.callers import caller_named
from factory.executors import build_executor
from factory.identities import PLANNER


class Command(BaseCommand):
    help = "Serve our tools over MCP on stdin and stdout, as the user named here."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", required=True, help="username that every call is made as")
        parser.add_argument("--workspace", default="", help="its slug; may be left out with one membership")
        parser.add_argument("--mode", default="workflow", choices=["conversation", "workflow"])
        parser.add_argument("--identity", default=PLANNER, help="whose tool set is offered")

    def handle(self, **options: Any) -> None:
        from tools.mcp_server import Caller, build_server, serve_stdio  # the SDK is slow to load

        caller = Caller(*caller_named(options["user"], options["workspace"]))
        server = build_server(
            caller_of=lambda _request: caller,
            executor_of=lambda workspace: build_executor(
                options["identity"], mode=options["mode"], workspace=workspace
            ),
            clock=timezone.now,
        )
        anyio.run(serve_stdio, server)
