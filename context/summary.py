"""Cut a snapshot that is over its budget to one that says so (CAP-037)."""

from __future__ import annotations

import json
from typing import Any

from llm.tokens import CHARACTERS_A_TOKEN


def estimate_tokens(value: Any) -> int:
    """How many tokens `value` takes as JSON, estimated from its characters; other scripts count by their bytes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return int(len(text.encode("utf-8", "surrogatepass")) / CHARACTERS_A_TOKEN) + 1


def within_budget(snapshot: dict[str, Any], *, budget: int) -> tuple[dict[str, Any], bool]:
    """The snapshot, or its summary, and whether it is one.

    Args:
        budget: tokens.

    Lists are cut to ever shorter heads and long texts to ever shorter ones until it fits; every cut leaves the whole
    count behind (`{"total": 2900, "shown": 40, "items": […]}`).
    """
    size = estimate_tokens(snapshot)
    if size <= budget:
        return snapshot, False
    note = {"reason": "over_budget", "tokens": size, "budget": budget, "hint": "use search tools for what is left out"}
    for items, characters in ((200, 2_000), (50, 500), (20, 200), (10, 100), (5, 80), (2, 40), (0, 0)):
        summary = {"summary": note, **_cut(snapshot, items=items, characters=characters)}
        if estimate_tokens(summary) <= budget:
            return summary, True
    return {"summary": {**note, "parts": sorted(snapshot)[:50]}}, True


def _cut(value: Any, *, items: int, characters: int) -> Any:
    if isinstance(value, dict):
        kept = list(value.items())
        if len(kept) > max(items, 25):
            head = {k: _cut(v, items=items, characters=characters) for k, v in kept[: max(items, 5)]}
            return {"total": len(kept), "shown": len(head), "items": head}
        return {k: _cut(v, items=items, characters=characters) for k, v in kept}
    if isinstance(value, list):
        head_items = [_cut(v, items=items, characters=characters) for v in value[:items]]
        if len(value) <= items:
            return head_items
        return {"total": len(value), "shown": len(head_items), "items": head_items}
    if isinstance(value, str) and len(value) > characters:
        return f"{value[:characters]}… ({len(value)} characters)"
    return value
