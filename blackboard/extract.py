"""Take the board's block out of a model's text (CAP-071), also while the text still arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from blackboard.types import CLOSING, KEYS, MAX_CHARS, OPENING, Board, Extract
from llm.arguments import storable
from llm.structured import extract_json_object

_LINE = re.compile(r"^\s*[-*]?\s*([a-z_]+)\s*[:=]\s*(.+?)\s*$")


def extract(text: str, max_chars: int = MAX_CHARS) -> Extract:
    """Split what a model said into what people see and its board.

    Args:
        text: the whole answer; the first block counts, and what stands around the blocks is shown.
        max_chars: of all values together.

    Source: CAP-071.
    """
    before, opening, rest = text.partition(OPENING)
    if not opening:
        return Extract(text, None, had_block=False)
    inside, closing, rest = rest.partition(CLOSING)
    board = _board(inside, max_chars) if closing else None
    shown = [before.rstrip()]
    while closing:
        between, opening, rest = rest.partition(OPENING)
        shown += [between.strip()] if between.strip() else []
        _, closing, rest = rest.partition(CLOSING) if opening else ("", "", "")
    return Extract("\n\n".join(shown), board, had_block=True)


def _board(inside: str, max_chars: int) -> Board | None:
    """The allow-listed keys of JSON, or of `key: value` lines; None when there are none."""
    said: Mapping[str, Any] | None = extract_json_object(inside)
    if said is None:
        said = {match[1]: match[2] for line in inside.splitlines() if (match := _LINE.match(line))}
    board: Board = {}
    left = max_chars
    for key in KEYS:
        value = said.get(key)
        said_of = storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        text = " ".join(said_of.split())
        if value is None or not text or left <= 0:
            continue
        board[key] = text if len(text) <= left else f"{text[: left - 1]}…"
        left -= len(board[key])
    return board or None


class VisibleText:
    """Passes on a text that arrives in pieces, without the block; what may still become one is held back."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False

    def feed(self, piece: str) -> str:
        """The part of the text so far that is certain to be visible and was not given before."""
        self._held += piece
        out = ""
        while True:
            mark = CLOSING if self._inside else OPENING
            at = self._held.find(mark)
            if at < 0:
                keep = _begun(self._held, mark)
                certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
                return out if self._inside else out + certain
            if not self._inside:
                out += self._held[:at]
            self._held = self._held[at + len(mark) :]
            self._inside = not self._inside

    def close(self) -> str:
        """What was held back and is no block after all."""
        held, self._held = self._held, ""
        return "" if self._inside else held


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the mark's beginning."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
