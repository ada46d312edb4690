"""Reads one JSON value as models write them, and refuses whatever could be meant in two ways.

Taken besides JSON: comments, a comma before a closing bracket, single and smart quotes, keys without quotes, Python's
None, True and False, raw control characters inside strings, and a stray backslash in a string without other escapes.
Refused: NaN and Infinity, a key twice with two values, unescaped quotes, missing commas, nesting beyond 100.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 100
_FAST_TRIES = 20  # of the standard decoder on one text, whose failures take time that grows with the text
_SPACE = re.compile(r"[\s\ufeff\u200b]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?(?![\w.])")
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_WORDS: dict[str, Any] = {"null": None, "true": True, "false": False, "None": None, "True": True, "False": False}
_QUOTES = {
    '"': '"',
    "'": "'",
    "\u201c": "\u201d\u201c",
    "\u2018": "\u2019\u2018",
    "\u201d": "\u201d",
    "\u201e": "\u201d\u201c",
}
_CHUNKS = {quote: re.compile(f"[^{ends}\\\\]*") for quote, ends in _QUOTES.items()}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class Unreadable(ValueError):
    """No value here.

    Attributes:
        at: where reading stopped, an offset into the text.
        ended: the text ended inside the value.
        began: enough had been read to say that JSON was meant.
    """

    def __init__(self, reason: str, at: int, *, ended: bool = False) -> None:
        super().__init__(reason)
        self.at = at
        self.ended = ended
        self.began = False


def strict(text: str) -> Any:
    """`json.loads` without its leniences.

    Raises:
        ValueError: not JSON, or a value JSON does not have.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value and value[key] != item:
            raise ValueError(f"the key {key!r:.80} is there twice")
        value[key] = item
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_pairs)


class Reader:
    """Reads the value that begins at `start`; `steps` counts what it did."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = 0
        self._began = False
        self._fast_tries = _FAST_TRIES

    def read(self, start: int) -> tuple[Any, int]:
        """The value and the offset behind it.

        Raises:
            Unreadable: says why, where, and whether JSON was meant.
        """
        self._began = False
        self.steps += 1
        if self._fast_tries:
            try:
                return _DECODER.raw_decode(self.text, start)
            except (ValueError, RecursionError):
                self._fast_tries -= 1
                self.steps += start  # its error counts the lines up to here
        try:
            return self._value(start, 0)
        except Unreadable as exc:
            exc.began = self._began
            raise

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        self.steps += 1
        at = self._skip(at)
        char = self._char(at)
        if char in "{[":
            if depth >= MAX_DEPTH:
                raise Unreadable("nested too deeply", at)
            return self._object(at, depth) if char == "{" else self._array(at, depth)
        if char in _QUOTES:
            return self._string(at)
        number = _NUMBER.match(self.text, at)
        if number:
            whole = not (number[1] or number[2])
            try:
                return (int(number[0]) if whole else _finite(number[0])), number.end()
            except ValueError as exc:
                raise Unreadable(str(exc), at) from exc
        name = _NAME.match(self.text, at)
        if name and name[0] in _WORDS:
            return _WORDS[name[0]], name.end()
        what = name[0] if name else char
        raise Unreadable(f"{what!r:.40} is no JSON value", at)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        value: dict[str, Any] = {}
        at = self._skip(at + 1)
        while self._char(at) != "}":
            key_at = at
            key, at = self._key(at)
            quoted = self.text[key_at] in _QUOTES
            at = self._skip(at)
            if self._char(at) != ":":
                raise Unreadable(f"a colon belongs behind the key {key!r:.80}", at)
            self._began = self._began or quoted
            item, at = self._value(at + 1, depth + 1)
            if key in value and value[key] != item:
                raise Unreadable(f"the key {key!r:.80} is there twice", key_at)
            value[key] = item
            at = self._next(at, "}")
        return value, at + 1

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        value: list[Any] = []
        at = self._skip(at + 1)
        while self._char(at) != "]":
            if self._char(at) in _QUOTES or self._char(at) == "{":
                self._began = True
            item, at = self._value(at, depth + 1)
            value.append(item)
            at = self._next(at, "]")
        return value, at + 1

    def _next(self, at: int, close: str) -> int:
        """Past the comma to the next item, or to the closing bracket."""
        at = self._skip(at)
        char = self._char(at)
        if char == ",":
            return self._skip(at + 1)
        if char != close:
            raise Unreadable(f"',' or '{close}' belongs here, not {char!r}", at)
        return at

    def _key(self, at: int) -> tuple[str, int]:
        self.steps += 1
        if self._char(at) in _QUOTES:
            return self._string(at)
        name = _NAME.match(self.text, at)
        if not name:
            raise Unreadable("a key belongs here", at)
        return name[0], name.end()

    def _string(self, at: int) -> tuple[str, int]:
        quote = self.text[at]
        ends, chunk = _QUOTES[quote], _CHUNKS[quote]
        parts: list[str] = []
        stray = other = False
        start, at = at, at + 1
        while True:
            self.steps += 1
            run = chunk.match(self.text, at)
            assert run is not None
            parts.append(run[0])
            at = run.end()
            if self._char(at) in ends:
                break
            part, at = self._escape(at)
            stray = stray or (part.startswith("\\") and len(part) == 2)
            other = other or (len(part) == 1 and part in "\b\f\n\r\t")
            parts.append(part)
        if stray and other:
            raise Unreadable("a backslash here could be meant in two ways", start)
        text = "".join(parts)
        try:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise Unreadable("half a surrogate pair", start) from None
        return text, at + 1

    def _escape(self, at: int) -> tuple[str, int]:
        """What a backslash at `at` stands for; one that means nothing stands for itself, its neighbour with it."""
        self._char(at + 1)
        char = self.text[at + 1]
        if char in _ESCAPES:
            return _ESCAPES[char], at + 2
        if char == "u":
            digits = _HEX.match(self.text, at + 2)
            if not digits:
                raise Unreadable("four hexadecimal digits belong behind \\u", at, ended=at + 6 > len(self.text))
            return chr(int(digits[0], 16)), at + 6
        return "\\" + char, at + 2

    def _skip(self, at: int) -> int:
        """Past blanks and comments."""
        while True:
            self.steps += 1
            blank = _SPACE.match(self.text, at)
            assert blank is not None
            at = blank.end()
            if self.text.startswith("//", at) or self.text.startswith("#", at):
                line = self.text.find("\n", at)
                at = len(self.text) if line < 0 else line + 1
            elif self.text.startswith("/*", at):
                close = self.text.find("*/", at + 2)
                at = len(self.text) if close < 0 else close + 2
            else:
                return at

    def _char(self, at: int) -> str:
        if at >= len(self.text):
            raise Unreadable("the text ends here", len(self.text), ended=True)
        return self.text[at]
