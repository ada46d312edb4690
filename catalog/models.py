"""The catalogue's rows: repositories, their elements and relations, scans, and the change sets that govern them.

    change set: proposed -> applied | rejected

One arrow is one QuerySet method and one UPDATE, whose row count says whether the arrow was taken.
"""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models

from catalog.types import KEY_CHARS, KINDS, VERDICTS
from workspaces.models import User, Workspace
from workspaces.scoping import ScopedQuerySet


class Repository(models.Model):
    """A source tree that is scanned again and again; `revision` counts the change sets applied to it."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    label = models.CharField(max_length=200)
    revision = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ScopedQuerySet["Repository"].as_manager()

    class Meta:
        verbose_name_plural = "repositories"
        constraints = (models.UniqueConstraint(fields=("workspace", "label"), name="one_repository_a_label"),)

    def __str__(self) -> str:
        return self.label


class Scan(models.Model):
    """One finished extraction run; a failed one leaves no row."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    repository = models.ForeignKey(Repository, on_delete=models.CASCADE, related_name="scans")
    files = models.PositiveIntegerField()
    counts = models.JSONField(default=dict)  # by step: what it took or decided, and how often
    correlation_id = models.CharField(max_length=64, db_index=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    objects = ScopedQuerySet["Scan"].as_manager()

    def __str__(self) -> str:
        return f"scan {self.pk} of {self.repository}"


class CandidateVerdict(models.Model):
    """The last decision about a candidate; an unchanged candidate is not asked about again.

    A person's decision has no digest and holds until a person changes it.
    """

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    repository = models.ForeignKey(Repository, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=KEY_CHARS)
    verdict = models.CharField(max_length=8, choices=[(v, v) for v in VERDICTS])
    into = models.CharField(max_length=KEY_CHARS, blank=True)
    name = models.CharField(max_length=200, blank=True)
    digest = models.CharField(max_length=64, blank=True)

    objects = ScopedQuerySet["CandidateVerdict"].as_manager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("repository", "key"), name="one_verdict_a_candidate"),)

    def __str__(self) -> str:
        return f"{self.verdict} {self.key}"


class Element(models.Model):
    """An architecture element. `key` is its natural key, unique in its repository; see `catalog.types.Candidate`."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    repository = models.ForeignKey(Repository, on_delete=models.CASCADE, related_name="elements")
    key = models.CharField(max_length=KEY_CHARS)
    kind = models.CharField(max_length=16, choices=[(k, k) for k in KINDS])
    name = models.CharField(max_length=KEY_CHARS)
    path = models.TextField(blank=True)
    line = models.PositiveIntegerField(default=0)
    summary = models.TextField(blank=True)
    parent = models.CharField(max_length=KEY_CHARS, blank=True)
    attributes = models.JSONField(default=dict)

    objects = ScopedQuerySet["Element"].as_manager()

    class Meta:
        ordering = ("key",)
        constraints = (models.UniqueConstraint(fields=("repository", "key"), name="one_element_a_key"),)
        indexes = (
            models.Index(fields=("workspace", "key"), name="element_workspace_key"),
            models.Index(fields=("repository", "kind"), name="element_kind"),
            models.Index(fields=("repository", "parent"), name="element_parent"),
        )

    def __str__(self) -> str:
        return self.key


class RelationKind(models.TextChoices):
    IMPORTS = "imports"
    CONTAINS = "contains"
    INHERITS = "inherits"


class Relation(models.Model):
    """A directed edge between two elements of one repository."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    source = models.ForeignKey(Element, on_delete=models.CASCADE, related_name="outgoing")
    target = models.ForeignKey(Element, on_delete=models.CASCADE, related_name="incoming")
    kind = models.CharField(max_length=8, choices=RelationKind.choices)

    objects = ScopedQuerySet["Relation"].as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("source", "kind", "target"), name="one_relation"),
            models.CheckConstraint(condition=~models.Q(source=models.F("target")), name="relation_of_two"),
        )

    def __str__(self) -> str:
        return f"{self.source_id} {self.kind} {self.target_id}"


class ElementNote(models.Model):
    """What somebody wrote about an element; kept by natural key, so that it outlives a rescan."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    repository = models.ForeignKey(Repository, on_delete=models.CASCADE, related_name="notes")
    key = models.CharField(max_length=KEY_CHARS)
    text = models.TextField()
    author = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ScopedQuerySet["ElementNote"].as_manager()

    class Meta:
        indexes = (models.Index(fields=("repository", "key"), name="note_key"),)

    def __str__(self) -> str:
        return f"note on {self.key}"


class ChangeSetStatus(models.TextChoices):
    PROPOSED = "proposed"
    APPLIED = "applied"
    REJECTED = "rejected"


class ChangeSetOrigin(models.TextChoices):
    SCAN = "scan"
    AGENT = "agent"


class ChangeSetQuerySet(ScopedQuerySet["ChangeSet"]):
    def take_apply(self, pk: int, *, by: User | None, now: datetime) -> bool:
        """proposed → applied; whether the arrow was taken."""
        return self._decide(pk, ChangeSetStatus.APPLIED, by=by, now=now)

    def take_reject(self, pk: int, *, by: User | None, note: str, now: datetime) -> bool:
        """proposed → rejected; whether the arrow was taken."""
        return self._decide(pk, ChangeSetStatus.REJECTED, by=by, now=now, note=note)

    def _decide(self, pk: int, to: str, *, by: User | None, now: datetime, note: str = "") -> bool:
        return bool(
            self.filter(pk=pk, status=ChangeSetStatus.PROPOSED).update(
                status=to, decided_by=by, decided_at=now, decision_note=note
            )
        )

    def supersede(self, repository: Repository, *, now: datetime) -> int:
        """proposed → rejected for what earlier scans of `repository` proposed; how many."""
        return self.filter(repository=repository, origin=ChangeSetOrigin.SCAN, status=ChangeSetStatus.PROPOSED).update(
            status=ChangeSetStatus.REJECTED, decided_at=now, decision_note="A newer scan took its place."
        )


class ChangeSet(models.Model):
    """Changes to one repository's elements that are applied together or not at all.

    Args:
        verdicts: lasting decisions that applying it makes, as `{key, verdict, name}`; only an agent's or a person's
            proposal has them.
    """

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    repository = models.ForeignKey(Repository, on_delete=models.CASCADE, related_name="change_sets")
    scan = models.OneToOneField(Scan, null=True, on_delete=models.SET_NULL, related_name="change_set")
    origin = models.CharField(max_length=8, choices=ChangeSetOrigin.choices)
    title = models.CharField(max_length=200)
    reason = models.TextField(blank=True)
    status = models.CharField(max_length=10, choices=ChangeSetStatus.choices, default=ChangeSetStatus.PROPOSED)
    added = models.PositiveIntegerField(default=0)
    updated = models.PositiveIntegerField(default=0)
    deleted = models.PositiveIntegerField(default=0)
    verdicts = models.JSONField(default=list)
    correlation_id = models.CharField(max_length=64, db_index=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    decided_at = models.DateTimeField(null=True)
    decision_note = models.TextField(blank=True)

    objects = ChangeSetQuerySet.as_manager()

    class Meta:
        ordering = ("-pk",)
        permissions = (("decide_changeset", "Can apply or reject a change set"),)
        constraints = (
            models.CheckConstraint(condition=models.Q(status__in=ChangeSetStatus.values), name="change_set_status"),
            models.CheckConstraint(
                condition=models.Q(status=ChangeSetStatus.PROPOSED) ^ models.Q(decided_at__isnull=False),
                name="change_set_decided",
            ),
        )

    def __str__(self) -> str:
        return f"change set {self.pk}: {self.title}"


class ChangeOpKind(models.TextChoices):
    DELETE = "delete"
    UPDATE = "update"
    ADD = "add"


class ChangeOp(models.Model):
    """One element's change, its outgoing edges included; `seq` orders deletes before updates before adds."""

    change_set = models.ForeignKey(ChangeSet, on_delete=models.CASCADE, related_name="ops")
    seq = models.PositiveIntegerField()
    op = models.CharField(max_length=6, choices=ChangeOpKind.choices)
    key = models.CharField(max_length=KEY_CHARS)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        ordering = ("seq",)
        constraints = (
            models.UniqueConstraint(fields=("change_set", "seq"), name="one_op_a_seq"),
            models.CheckConstraint(
                condition=models.Q(op="add", before__isnull=True, after__isnull=False)
                | models.Q(op="delete", before__isnull=False, after__isnull=True)
                | models.Q(op="update", before__isnull=False, after__isnull=False),
                name="op_has_its_sides",
            ),
        )

    def __str__(self) -> str:
        return f"{self.op} {self.key}"
