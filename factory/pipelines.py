"""Compiled pipelines: a known step graph becomes a durable plan (T-03, SC-03)."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from factory.identities import PLANNER
from observability.correlation import new_correlation_id
from plan.services import from_template
from tools.ports import dispatcher
from workspaces.models import User, Workspace


def enqueue_compiled_plan(
    template_id: str,
    context: dict[str, Any],
    *,
    owner: User,
    workspace: Workspace,
    identity: str = PLANNER,
    correlation_id: str | None = None,
) -> int:
    """Make a plan from a template and send it to a worker once it is committed; its id.

    Args:
        template_id: a template that a domain app registered.
        context: what the steps' arguments may refer to; plain JSON.
        owner: whose plan it is; tools run as this user.

    Raises:
        PlanError: no such template, or its steps do not fit `context`; nothing was written.

    Source: CAP-050, CAP-062.
    """
    with transaction.atomic():
        plan = from_template(
            template_id,
            context,
            owner=owner,
            workspace=workspace,
            identity=identity,
            correlation_id=correlation_id or new_correlation_id(),
            now=timezone.now(),
        )
        dispatcher().dispatch_after_commit(plan)
    return plan.pk
