"""Rows: the MCP servers a workspace uses, and what each of their tools was when a person approved it."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from workspaces.models import User, Workspace
from workspaces.scoping import ScopedQuerySet


class McpServerQuerySet(ScopedQuerySet["McpServer"]):
    def changed(self, pk: int) -> None:
        """The workspace's layer of tools is another one now; processes read it again."""
        self.filter(pk=pk).update(version=F("version") + 1)


class McpServer(models.Model):
    """Another server whose tools a workspace may use; `version` grows with every change of what is callable."""

    class Transport(models.TextChoices):
        HTTP = "http"
        STDIO = "stdio"

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="mcp_servers")
    name = models.SlugField(max_length=24, help_text="Its tools are called mcp__name__tool.")
    transport = models.CharField(max_length=8, choices=Transport.choices, default=Transport.HTTP)
    url = models.CharField(max_length=500, blank=True, help_text="For http: where it listens.")
    command = models.SlugField(max_length=64, blank=True, help_text="For stdio: a name in CAPSTAN_TOOLS mcp_commands.")
    permission = models.CharField(
        max_length=150, default="capstan_tools.use_mcp", help_text="What a user must hold to call its tools."
    )
    timeout_s = models.FloatField(default=30.0, help_text="Wall clock of one call, seconds.")
    result_characters = models.PositiveIntegerField(default=100_000, help_text="What is kept of one result.")
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = McpServerQuerySet.as_manager()

    class Meta:
        verbose_name = "MCP server"
        ordering = ("workspace", "name")
        permissions = (("use_mcp", "Can call tools of MCP servers"),)
        constraints = (
            models.UniqueConstraint(fields=("workspace", "name"), name="one_mcp_server_a_name"),
            models.CheckConstraint(
                condition=Q(transport="http", command="") & ~Q(url="") | Q(transport="stdio", url="") & ~Q(command=""),
                name="mcp_server_address",
            ),
        )

    def __str__(self) -> str:
        return self.name


class McpToolQuerySet(models.QuerySet["McpTool"]):
    def approve(self, pk: int, *, by: User, digest: str) -> bool:
        """Take what the server offers now as what may be called; False when that is no longer what was looked at."""
        row = self.filter(pk=pk, digest=digest).values_list("offered", flat=True).first()
        if row is None:
            return False
        return bool(
            self.filter(pk=pk, digest=digest).update(
                approved_digest=digest,
                approved_by=by,
                description=str(row.get("description") or ""),
                input_schema=row.get("input_schema") or {},
            )
        )

    def withdraw(self, pk: int) -> bool:
        """Not callable any more."""
        return bool(self.filter(pk=pk).exclude(approved_digest="").update(approved_digest="", approved_by=None))


class McpTool(models.Model):
    """A tool that an MCP server offers.

    It is listed from the first approval on, with the description and schema that were approved, and callable while what
    the server offers is still that; a changed one has to be approved again.
    """

    server = models.ForeignKey(McpServer, on_delete=models.CASCADE, related_name="tools")
    name = models.CharField(max_length=128)
    effect = models.CharField(max_length=8, choices=[("external", "external"), ("read", "read")], default="external")
    approval = models.CharField(
        max_length=12,
        choices=[(policy, policy) for policy in ("never", "call", "turn", "conversation")],
        default="call",
    )
    offered = models.JSONField(default=dict)
    digest = models.CharField(max_length=64)
    description = models.TextField(blank=True)
    input_schema = models.JSONField(default=dict)
    approved_digest = models.CharField(max_length=64, blank=True)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    seen_at = models.DateTimeField()

    objects = McpToolQuerySet.as_manager()

    class Meta:
        verbose_name = "MCP tool"
        ordering = ("server", "name")
        constraints = (models.UniqueConstraint(fields=("server", "name"), name="one_mcp_tool_a_name"),)

    def __str__(self) -> str:
        return f"{self.server_id}/{self.name}"

    @property
    def callable_now(self) -> bool:
        """What the server offers is what was approved."""
        return bool(self.approved_digest) and self.approved_digest == self.digest
