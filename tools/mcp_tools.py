"""The tools of a workspace's MCP servers as tools of ours: `mcp__server__tool`, each approved by a person."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.db import transaction

from tools.errors import InvalidArguments, RemoteToolChanged
from tools.mcp_models import McpServer, McpTool
from tools.schema import SERVER_SET, path_of, unstorable_names
from tools.types import Arguments, ToolContext, ToolSpec
from tools.values import digest, storable
from workspaces.models import User

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

logger = logging.getLogger(__name__)

DESCRIPTION_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class RemoteSignature:
    """Validates against the schema that was approved; what only the server sets is hidden and set (CAP-036)."""

    validator: Validator
    server_set: tuple[tuple[str, type], ...] = ()

    def parse(self, arguments: Mapping[str, Any]) -> Arguments:
        """Validate what the model sent.

        Raises:
            InvalidArguments: names the fields that do not fit, and echoes no value.
        """
        dropped = tuple(name for name in arguments if name in SERVER_SET)
        sent = {name: value for name, value in arguments.items() if name not in SERVER_SET}
        unclean = unstorable_names(sent)
        if unclean:
            raise InvalidArguments(f"arguments hold NUL or broken characters: {', '.join(unclean)}")
        problems = [_problem(error) for error in self.validator.iter_errors(sent)]
        if problems:
            raise InvalidArguments("wrong arguments: " + "; ".join(dict.fromkeys(problems)))
        stored: dict[str, Any] = storable(sent, "arguments")
        return Arguments(values=stored, stored=stored, dropped=dropped)

    def call(self, fn: Callable[..., Any], values: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the remote tool."""
        ids = {name: kind(SERVER_SET[name](context)) for name, kind in self.server_set}
        return fn(context, {**values, **ids})


def layer_of(servers: Sequence[McpServer]) -> list[ToolSpec]:
    """The approved tools of these servers; one that cannot be a tool of ours is left out and logged."""
    if not servers:
        return []
    from jsonschema import SchemaError

    specs: dict[str, ToolSpec] = {}
    for server in servers:
        for row in server.tools.exclude(approved_digest="").order_by("name"):
            try:
                spec = spec_of(server, row)
            except (SchemaError, ValueError) as exc:
                logger.warning("MCP tool %s of %s is left out: %s", row.name, server.name, type(exc).__name__)
                continue
            if spec.name in specs:
                logger.warning("MCP tool %s of %s is left out: the name is taken", row.name, server.name)
                continue
            specs[spec.name] = spec
    return list(specs.values())


def spec_of(server: McpServer, row: McpTool) -> ToolSpec:
    """One approved tool."""
    from jsonschema import Draft202012Validator, validators  # not at the start of every process: most have no such tool

    schema: dict[str, Any] = {"type": "object", "properties": {}, **row.input_schema}
    if schema["type"] != "object" or not isinstance(schema["properties"], dict):
        raise ValueError("the arguments are no object")
    kinds = {name: schema["properties"].get(name) for name in SERVER_SET if name in schema["properties"]}
    shown = {
        **schema,
        "properties": {name: part for name, part in schema["properties"].items() if name not in SERVER_SET},
        "required": [name for name in schema.get("required", []) if name not in SERVER_SET],
    }
    checker = validators.validator_for(shown, default=Draft202012Validator)
    checker.check_schema(shown)
    server_set = tuple(
        (name, int if isinstance(part, dict) and part.get("type") in ("integer", "number") else str)
        for name, part in kinds.items()
    )
    return ToolSpec(
        name=tool_name(server, row.name),
        fn=partial(_call, row.pk),
        effect="read" if row.effect == "read" else "external",
        description=f"(From the MCP server {server.name}.) {row.description}"[:DESCRIPTION_CHARACTERS],
        input_schema=shown,
        signature=RemoteSignature(validator=checker(shown), server_set=server_set),
        permission=server.permission,
        approval=row.approval,  # type: ignore[arg-type]  # the field's choices hold the set
        timeout_s=server.timeout_s,
        label=f"{server.name}: {row.name}",
        granted=True,
    )


def tool_name(server: McpServer, name: str) -> str:
    """What the model calls it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"mcp__{server.name}__{name}")[:64]


def refresh(*, server: McpServer, now: datetime) -> list[McpTool]:
    """Ask a server what it offers and keep it beside what was approved; the rows that are new or changed.

    Args:
        now: aware UTC time.

    Raises:
        RemoteToolError, EgressRefused: it cannot be asked.
    """
    from tools.mcp_client import offered_tools  # the SDK is slow to load

    offers = {offer["name"]: offer for offer in offered_tools(server)}
    changed: list[McpTool] = []
    with transaction.atomic():
        for name, offer in offers.items():
            row, new = McpTool.objects.get_or_create(
                server=server,
                name=name[:128],
                defaults={"offered": offer, "digest": digest(offer), "seen_at": now} | _shown(offer),
            )
            if not new and row.digest != digest(offer):
                McpTool.objects.filter(pk=row.pk).update(offered=offer, digest=digest(offer), seen_at=now)
            elif not new:
                McpTool.objects.filter(pk=row.pk).update(seen_at=now)
                continue
            changed.append(row)
        gone = server.tools.exclude(name__in=list(offers)).exclude(digest="")
        changed += list(gone)
        gone.update(digest="", offered={})
        if changed:
            McpServer.objects.changed(server.pk)
    return changed


def approve(*, tools: Sequence[McpTool], user: User) -> int:
    """Let what these tools offer now be called; how many were still what the user looked at."""
    with transaction.atomic():
        approved = sum(
            bool(row.digest) and McpTool.objects.approve(row.pk, by=user, digest=row.digest) for row in tools
        )
        for server_id in {row.server_id for row in tools}:
            McpServer.objects.changed(server_id)
    return approved


def withdraw(*, tools: Sequence[McpTool]) -> int:
    """Let these tools be called no more; how many could be."""
    with transaction.atomic():
        withdrawn = sum(McpTool.objects.withdraw(row.pk) for row in tools)
        for server_id in {row.server_id for row in tools}:
            McpServer.objects.changed(server_id)
    return withdrawn


def _call(tool_id: int, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
    from tools.mcp_client import call_remote  # the SDK is slow to load

    row = (
        McpTool.objects.select_related("server")
        .filter(pk=tool_id, server__workspace=context.workspace, server__enabled=True)
        .first()
    )
    if row is None or not row.callable_now:
        raise RemoteToolChanged(tool=row.name if row is not None else tool_id)
    try:
        return call_remote(
            row.server,
            name=row.name,
            approved_digest=row.approved_digest,
            arguments=arguments,
            key=context.idempotency_key,
        )
    except RemoteToolChanged:
        McpTool.objects.filter(pk=row.pk).exclude(effect="read").update(digest="")
        raise


def _shown(offer: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": str(offer.get("description") or ""), "input_schema": offer.get("input_schema") or {}}


def _problem(error: ValidationError) -> str:
    path = path_of(tuple(error.absolute_path))
    if error.validator == "required":
        wanted, given = cast("list[str]", error.validator_value), cast("dict[str, Any]", error.instance)
        missing = [name for name in wanted if name not in given]
        return f"{path}: {', '.join(missing)} is required"
    if error.validator == "type":
        return f"{path}: should be of type {error.validator_value}"
    return f"{path}: does not fit {error.validator!r} of the schema"
