from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from tools.queries import approvals_for
from tools.services import decide
from workspaces.errors import CapstanError
from workspaces.models import User


class Command(BaseCommand):
    help = "Approve or reject a tool call that waits for a person; without an id, list what waits (CAP-033)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("approval", nargs="?", type=int, help="which approval")
        parser.add_argument("decision", nargs="?", choices=["approve", "reject"])
        parser.add_argument("--user", required=True, help="username of who decides")
        parser.add_argument("--note", default="", help="for the model and the record")
        parser.add_argument("--arguments", help="run with this JSON object in place of the stored arguments")

        parser.add_argument(
            "--any-arguments", action="store_true", help="stand for later calls with other arguments, where it may"
        )

    def handle(self, **options: Any) -> None:
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"there is no active user {options['user']!r}")
        if options["approval"] is None:
            for approval in approvals_for(user, status="pending").order_by("pk"):
                self.stdout.write(f"{approval.pk}\t{approval.workspace}\t{approval.summary}\t{approval.arguments}")
            return
        if options["decision"] is None:
            raise CommandError("say approve or reject")
        try:
            decided = decide(
                approval_id=options["approval"],
                user=user,
                decision=options["decision"],
                note=options["note"],
                arguments=_object(options["arguments"]),
                any_arguments=options["any_arguments"],
                now=timezone.now(),
            )
        except CapstanError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(f"{decided.pk} {decided.status}")


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise CommandError(f"--arguments is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise CommandError("--arguments is no JSON object")
    return value
