"""Where built snapshots are kept: Redis, or this process while Redis is away. Losing it costs one more build."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from typing import Any

import redis

from streaming.connection import circuit, client

logger = logging.getLogger(__name__)

LOCAL_ENTRIES = 256


class _Local:
    """A small in-process cache: newest versions only, so that memory stays bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def get(self, key: str) -> str | None:
        with self._lock:
            until, text = self._entries.get(key, (0.0, ""))
            return text if until > time.monotonic() else None

    def put(self, key: str, text: str, ttl_s: int) -> None:
        with self._lock:
            self._entries[key] = (time.monotonic() + ttl_s, text)
            self._entries.move_to_end(key)
            while len(self._entries) > LOCAL_ENTRIES:
                self._entries.popitem(last=False)


_local = _Local()


def read(key: str) -> dict[str, Any] | None:
    """The payload under `key`, or None."""
    if circuit.wait_s():
        text: Any = _local.get(key)
    else:
        try:
            text = client().get(key)
        except redis.RedisError as exc:
            _leave_alone(exc)
            text = _local.get(key)
    return json.loads(text) if isinstance(text, str) else None


def write(key: str, payload: dict[str, Any], *, ttl_s: int) -> None:
    """Keep `payload` for `ttl_s` seconds."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    if not circuit.wait_s():
        try:
            client().set(key, text, ex=ttl_s)
        except redis.RedisError as exc:
            _leave_alone(exc)
        else:
            return
    _local.put(key, text, ttl_s)


def try_lock(key: str, *, seconds: float) -> bool:
    """Whether the caller may build what `key` names; True as well while Redis is away: two builds are harmless."""
    if circuit.wait_s():
        return True
    try:
        return bool(client().set(f"{key}:lock", "1", nx=True, px=int(seconds * 1000)))
    except redis.RedisError as exc:
        _leave_alone(exc)
        return True


def unlock(key: str) -> None:
    """Let the next one build; a lock that Redis cannot be told of now is left to its time-out."""
    if circuit.wait_s():
        return
    try:
        client().delete(f"{key}:lock")
    except redis.RedisError as exc:
        _leave_alone(exc)


def _leave_alone(exc: redis.RedisError) -> None:
    logger.warning("snapshot cache in this process only: %s", exc)
    circuit.failed(exc)
