"""The stand-in's answers to requests for JSON: verdicts on a batch of candidates, by rule."""

from __future__ import annotations

import json
import re
from typing import Any

from llm.adapters.demo_reading import Reading

_NOISE = re.compile(
    r"(^|[/._])(tests?|conftest|fixtures?|migrations|vendor(ed)?|third_party|generated|node_modules|__pycache__|_pb2)([/._]|$)"
    r"|_pb2(_grpc)?(\.py)?$",
    re.I,
)
_DUNDER = re.compile(r"__\w+__")


def candidates(reading: Reading) -> list[dict[str, Any]] | None:
    """The candidates that the message is made of, or None when it is no such request."""
    text = reading.raw.strip()
    if not text.startswith("[") or "json array" not in reading.system.lower():
        start, end = text.find("[{"), text.rfind("}]")
        if start < 0 or end < start or "json array" not in (reading.system + text).lower():
            return None
        text = text[start : end + 2]
    try:
        items = json.loads(text)
    except ValueError:
        return None
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("key"), str) for item in items
    ):
        return None
    return items


def verdicts(items: list[dict[str, Any]], reading: Reading) -> str:
    """One verdict a candidate, in order; only verdicts that the instruction names."""
    named = {word for word in ("keep", "merge", "reject", "rename") if re.search(rf"\b{word}\b", reading.system)}
    named = named or {"merge", "reject", "rename"}
    first: dict[tuple[str, str, str, str], str] = {}
    out = []
    for item in items:
        verdict = _verdict(item, first, named)
        if verdict is not None:
            out.append(verdict)
    return json.dumps(out, ensure_ascii=False)


def _verdict(
    item: dict[str, Any], first: dict[tuple[str, str, str, str], str], named: set[str]
) -> dict[str, str] | None:
    key, name, path = item["key"], str(item.get("name") or ""), str(item.get("path") or "")
    whole = str(item.get("kind") or "") in ("package", "app")
    if "reject" in named and not whole and (_NOISE.search(path) or _NOISE.search(name)):
        return {"key": key, "verdict": "reject"}
    same = (key.partition(":")[0], name.lower(), str(item.get("kind") or ""), path)
    if "merge" in named and name and path and same in first:
        return {"key": key, "verdict": "merge", "into": first[same]}
    first.setdefault(same, key)
    if "rename" in named and _DUNDER.fullmatch(name):
        parent = [part for part in re.split(r"[./:]", key) if part and not _DUNDER.fullmatch(part)]
        if len(parent) > 1:
            return {"key": key, "verdict": "rename", "name": parent[-1][:120]}
    return {"key": key, "verdict": "keep"} if "keep" in named else None
