"""`Idempotency-Key`: the same POST again does nothing twice and answers from what the first one did (design § 8)."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from chat.errors import FieldInvalid, IdempotencyInProgress, IdempotencyMismatch
from chat.models import IdempotencyKey
from tools.runs import ClockTimestamp
from workspaces.models import User

HEADER = "Idempotency-Key"
ABANDONED_AFTER = timedelta(seconds=60)
KEPT_FOR = timedelta(hours=24)
_SHAPE = re.compile(r"[\x21-\x7e]{1,128}")


def begin(*, user: User, key: str, path: str, body: Any) -> IdempotencyKey:
    """The key's row: new, or what an earlier use left. Its age is told by the database's clock.

    When it is `used`, what was asked for is done or goes on: its view shows it, as far as the user may see it now.

    Raises:
        FieldInvalid: the header is no key: 1 to 128 printable characters without spaces.
        IdempotencyMismatch: it was used for another request.
        IdempotencyInProgress: that request is under way.
    """
    if not _SHAPE.fullmatch(key):
        raise FieldInvalid(field=HEADER, problem="takes 1 to 128 printable ASCII characters without spaces")
    text = json.dumps([path, body], sort_keys=True, separators=(",", ":"), default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    try:
        with transaction.atomic():
            new = IdempotencyKey.objects.create(user=user, key=key, path=path[:300], digest=digest)
            IdempotencyKey.objects.filter(pk=new.pk).update(created_at=ClockTimestamp())
            return new
    except IntegrityError:
        row = IdempotencyKey.objects.filter(user=user, key=key).first()
    if row is None:
        raise IdempotencyInProgress(key=key)
    if row.digest != digest:
        raise IdempotencyMismatch(key=key, path=row.path)
    if not row.used:
        stale = IdempotencyKey.objects.filter(pk=row.pk, target="", created_at__lt=ClockTimestamp() - ABANDONED_AFTER)
        if not stale.update(created_at=ClockTimestamp()):
            raise IdempotencyInProgress(key=key)
    return row


def answered(row: IdempotencyKey, *, status_code: int) -> None:
    """Remember that a request was answered which made nothing."""
    IdempotencyKey.objects.filter(pk=row.pk, target="", status_code=None).update(status_code=status_code)


def made(row: IdempotencyKey | None, target: object) -> None:
    """Remember what the request made, in the transaction that makes it."""
    if row is not None:
        IdempotencyKey.objects.filter(pk=row.pk).update(target=str(target))


def purge(now: datetime) -> int:
    """Forget the keys that are older than a day; how many."""
    deleted, _ = IdempotencyKey.objects.filter(created_at__lt=now - KEPT_FOR).delete()
    return deleted


def forget(row: IdempotencyKey) -> None:
    """The request failed before anything was made: the key is free again."""
    IdempotencyKey.objects.filter(pk=row.pk, status_code=None, target="").delete()
