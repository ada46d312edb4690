"""Only `worker/dispatch.py` sends Celery messages: everything else would send inside a transaction (CAP-062)."""

from __future__ import annotations

import ast
from pathlib import Path

from django.conf import settings

SENDERS = {"delay", "apply_async", "send_task", "signature", "retry"}
ALLOWED = {"worker/dispatch.py"}
ROOMS = (*settings.ROOMS, *settings.DOMAIN_APPS, "config")


def calls_that_send(path: Path) -> list[str]:
    """`file:line` of each call of a name that sends."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(settings.BASE_DIR)}:{node.lineno} .{node.func.attr}()"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SENDERS
        and not (node.func.attr in {"signature", "retry"} and not _looks_like_celery(node))
    ]  # fmt: skip


def _looks_like_celery(node: ast.Call) -> bool:
    return any(keyword.arg in {"countdown", "eta"} for keyword in node.keywords)


def test_nobody_but_the_dispatcher_sends():
    found = [
        place
        for room in ROOMS
        for path in sorted((Path(settings.BASE_DIR) / room).rglob("*.py"))
        if str(path.relative_to(settings.BASE_DIR)) not in ALLOWED
        for place in calls_that_send(path)
    ]
    assert found == []


def test_the_dispatcher_is_seen_to_send():
    assert calls_that_send(Path(settings.BASE_DIR) / "worker" / "dispatch.py")
