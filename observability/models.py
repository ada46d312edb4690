"""One row for each model call (CAP-101)."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from workspaces.models import Workspace
from workspaces.scoping import ScopedQuerySet


class OwnerKind(models.TextChoices):
    """What a lower row belongs to; its key is in `owner_id` (design § 3)."""

    TURN = "turn"
    STEP = "step"
    CALL = "call"
    COMMAND = "command"


class AgentInteraction(models.Model):
    """A model call: what it took, what it cost, what it belonged to. Written once, never changed.

    Token columns are null where the provider did not tell; `estimated_cost` is null where the price is unknown.
    """

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    correlation_id = models.CharField(max_length=64)
    owner_kind = models.CharField(max_length=8, choices=OwnerKind.choices)
    owner_id = models.BigIntegerField()
    conversation_id = models.UUIDField(null=True)
    plan_id = models.BigIntegerField(null=True)
    round = models.IntegerField(default=0)
    provider = models.CharField(max_length=32)
    model = models.CharField(max_length=128)
    tier = models.CharField(max_length=16, blank=True)
    input_tokens = models.IntegerField(null=True)
    output_tokens = models.IntegerField(null=True)
    cache_read_tokens = models.IntegerField(null=True)
    cache_write_tokens = models.IntegerField(null=True)
    reasoning_tokens = models.IntegerField(null=True)
    latency_ms = models.IntegerField()
    first_token_ms = models.IntegerField(null=True)
    estimated_cost = models.DecimalField(max_digits=14, decimal_places=8, null=True)
    price_source = models.CharField(max_length=64, blank=True)
    stop_reason = models.CharField(max_length=24, blank=True)
    error_code = models.CharField(max_length=64, blank=True)
    committed = models.BooleanField(default=True)  # False: paid for, but its round did not commit
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ScopedQuerySet["AgentInteraction"].as_manager()

    class Meta:
        indexes = (
            models.Index(fields=("owner_kind", "owner_id"), name="interaction_owner"),
            models.Index(fields=("correlation_id",), name="interaction_correlation"),
            models.Index(
                fields=("conversation_id",),
                condition=models.Q(conversation_id__isnull=False),
                name="interaction_conversation",
            ),
            models.Index(fields=("plan_id",), condition=models.Q(plan_id__isnull=False), name="interaction_plan"),
        )
        constraints = (
            models.CheckConstraint(condition=models.Q(owner_kind__in=OwnerKind.values), name="interaction_owner_kind"),
        )
        permissions = (("view_costs", "Can see costs"),)

    def __str__(self) -> str:
        return f"{self.model} for {self.owner}"

    @property
    def owner(self) -> str:
        """What it belongs to, as people say it: `turn 12`; a command has no number."""
        return self.owner_kind if self.owner_kind == OwnerKind.COMMAND else f"{self.owner_kind} {self.owner_id}"
