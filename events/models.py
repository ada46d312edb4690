"""The event log: one stream for each conversation (or plan without one), one counter a stream.

A stream's row is what everybody locks first who changes a run from outside (design § 5.6), and its counter gives each
event an id that becomes visible in order.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection, models

from events.types import EventName
from workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event before it has an id."""

    name: EventName
    payload: dict[str, Any]


class StreamQuerySet(models.QuerySet["Stream"]):
    def lock(self, stream_id: uuid.UUID) -> Stream:
        """Lock the stream's row until the transaction ends. Locks nothing else.

        Raises:
            Stream.DoesNotExist: no such stream.
        """
        return self.select_for_update(of=("self",), no_key=True).get(pk=stream_id)

    def append(self, stream_id: uuid.UUID, events: Sequence[EventRecord], *, correlation_id: str) -> list[int]:
        """Write events under the next ids of their stream; the ids, in order. Takes the stream's lock."""
        if not events:
            return []
        with connection.cursor() as cursor:
            cursor.execute(
                f"""WITH s AS (UPDATE {Stream._meta.db_table} SET last_seq = last_seq + %s WHERE id = %s
                        RETURNING id, last_seq - %s AS before),
                    e AS (INSERT INTO {Event._meta.db_table} (stream_id, seq, name, payload, correlation_id, created_at)
                        SELECT s.id, s.before + x.place, x.name, x.payload, %s, clock_timestamp()
                        FROM s, unnest(%s::text[], %s::jsonb[]) WITH ORDINALITY AS x(name, payload, place))
                    SELECT before FROM s""",  # noqa: S608
                [
                    len(events),
                    stream_id,
                    len(events),
                    correlation_id,
                    [str(event.name) for event in events],
                    [json.dumps(event.payload) for event in events],
                ],
            )
            row = cursor.fetchone()
        if row is None:
            raise Stream.DoesNotExist(str(stream_id))
        first = int(row[0]) + 1
        return list(range(first, first + len(events)))


class Stream(models.Model):
    """The counter of one stream of events. A conversation's stream has the conversation's id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+")
    last_seq = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = StreamQuerySet.as_manager()

    def __str__(self) -> str:
        return self.channel

    @property
    def channel(self) -> str:
        return channel_of(self.pk)


def channel_of(stream_id: uuid.UUID) -> str:
    """The Redis channel of a stream (CAP-100)."""
    return f"agent:stream:{stream_id}"


class Event(models.Model):
    """One durable event; (stream, seq) is its id on the wire."""

    stream = models.ForeignKey(Stream, on_delete=models.CASCADE, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    name = models.CharField(max_length=32)
    payload = models.JSONField(default=dict)
    correlation_id = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("stream", "seq")
        constraints = (models.UniqueConstraint(fields=("stream", "seq"), name="one_event_a_seq"),)

    def __str__(self) -> str:
        return f"{self.seq} {self.name}"
