"""Results as lines of Markdown: the list that matters in one, its plain fields, a row."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"(`+[^`]+`+)")
_UNSAID = frozenset({"summary", "repository", "line", "name"})


def rows_of(value: Any) -> list[dict[str, Any]]:
    """The list that matters most in a result."""
    if isinstance(value, list):
        return [row for row in value if isinstance(row, dict)]
    if not isinstance(value, dict):
        return []
    lists = [rows_of(one) for one in value.values() if isinstance(one, list)]
    return max(lists, key=len, default=[])


def size_of(value: Any) -> int:
    """How much a result tells; 0 for nothing."""
    return len(rows_of(value)) or len(facts_of(value))


def facts_of(value: Any) -> str:
    """The plain fields of an object."""
    if isinstance(value, str):
        return value[:600]
    if not isinstance(value, dict):
        return ""
    lines = []
    for name, one in value.items():
        if isinstance(one, bool) or one in (None, "", [], {}) or name in ("total", "empty"):
            continue
        if isinstance(one, str | int | float):
            lines.append(f"- {name}: {markdown_of(one, 200)}")
        elif isinstance(one, dict) and all(isinstance(v, str | int | float) for v in one.values()):
            lines.append(f"- {name}: {_plain(one)}")
        elif isinstance(one, dict):
            lines.extend(f"- {name} {inner}: {_plain(fields)}" for inner, fields in list(one.items())[:8])
    return "\n".join(lines[:12])


def _plain(value: Any) -> str:
    if not isinstance(value, dict):
        return markdown_of(value, 120)
    told = [(name, one) for name, one in list(value.items())[:8] if isinstance(one, str | int | float)]
    return ", ".join(f"{name} {markdown_of(one, 200)}" for name, one in told)


def markdown_of(value: object, longest: int) -> str:
    """A value in Markdown that shows its very characters: an identifier or a path as code, of other text what is not.

    Args:
        longest: characters of the value, at most.
    """
    text = str(value)[:longest]
    if not re.search(r"[\s`]", text) and re.search(r"_|[^\W\d][/:.]\w", text):
        return f"`{text}`"
    parts = _CODE.split(text)
    return "".join(part if at % 2 else re.sub(r"[_*]", r"\\\g<0>", part) for at, part in enumerate(parts))


def line_of(row: dict[str, Any]) -> str:
    """A row as one line of a list."""
    label = label_of(row)
    facts = [
        _fact(k, v)
        for k, v in row.items()
        if isinstance(v, int | str) and not isinstance(v, bool) and v != "" and str(v) != label and k not in _UNSAID
    ][:3]
    summary = markdown_of(_short(str(row.get("summary") or "").strip()), 122)
    return f"- `{label}`" + (f" ({', '.join(facts)})" if facts else "") + (f": {summary}" if summary else "")


def _fact(name: str, value: object) -> str:
    if name in ("kind", "relation"):
        return markdown_of(value, 200)
    if name == "times":
        return f"{value}×"
    return f"`{value}`" if name == "path" else f"{name} {markdown_of(value, 200)}"


def _short(text: str) -> str:
    """The first sentence, at most 120 characters."""
    first = re.split(r"(?<=\w\w\.)\s", text, maxsplit=1)[0]
    return first if len(first) <= 120 else f"{first[:120].rsplit(' ', 1)[0]} …"


def label_of(row: dict[str, Any]) -> str:
    """What a row is called."""
    return str(next((row[name] for name in ("key", "repository", "name", "title", "path", "id") if row.get(name)), ""))[
        :120
    ]
