"""What a docstring tells the model about a tool and its parameters: Google, NumPy and reST styles."""

from __future__ import annotations

from dataclasses import dataclass, field

from docstring_parser import ParseError, numpydoc, rest
from docstring_parser.common import Docstring
from docstring_parser.google import DEFAULT_SECTIONS, GoogleParser, Section, SectionType

_KEYWORD_SECTIONS = [
    Section(title, "param", SectionType.MULTIPLE)
    for title in ("Keyword Args", "Keyword Arguments", "Other Parameters", "Other Args")
]
_INTERNAL_SECTIONS = [Section(title, "note", SectionType.SINGULAR) for title in ("Source", "Note", "Notes")]


@dataclass(frozen=True, slots=True)
class Described:
    """A tool's description, and those of its parameters by name."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def described(docstring: str | None) -> Described:
    """Read a docstring; the style that yields most wins. One that no style can read is the description as it is."""
    if not docstring or not docstring.strip():
        return Described()
    readings: list[Docstring] = []
    for parse, mark in ((_google, ":\n"), (numpydoc.parse, "---"), (rest.parse, ":param")):
        if mark not in docstring and readings:
            continue
        try:
            readings.append(parse(docstring))
        except ParseError:
            continue
    if not readings:
        return Described(text=docstring.strip())
    best = max(readings, key=lambda reading: len(reading.meta))
    parts = [best.short_description, best.long_description]
    if best.returns is not None and best.returns.description:
        parts.append(f"Returns: {best.returns.description}")
    return Described(
        text="\n\n".join(part.strip() for part in parts if part),
        parameters={param.arg_name.lstrip("*"): (param.description or "").strip() for param in best.params},
    )


_google = GoogleParser(sections=[*DEFAULT_SECTIONS, *_KEYWORD_SECTIONS, *_INTERNAL_SECTIONS]).parse
