"""Whole numbers that clients write."""

from __future__ import annotations

DIGITS = 18  # of the largest number that any column takes


def whole_number(text: str) -> int | None:
    """The number that `text` writes in decimal digits alone; None when it is none, or too long to be a key."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS else None
