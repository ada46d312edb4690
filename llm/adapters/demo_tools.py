"""How the stand-in picks a tool from the schemas it is offered, and fills its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llm.adapters.demo_reading import Reading, Thing, says
from llm.types import ToolSchema

_READ = frozenset(
    {
        "catalog",
        "count",
        "describe",
        "explain",
        "explore",
        "fetch",
        "find",
        "get",
        "inspect",
        "list",
        "look",
        "lookup",
        "ping",
        "query",
        "read",
        "report",
        "search",
        "show",
        "status",
        "summarize",
        "summarise",
        "view",
    }
)
_SEARCH = frozenset({"find", "search", "query", "lookup"})
_KEYS = frozenset(
    {"key", "id", "name", "element", "path", "module", "target", "source", "symbol", "identifier", "ref", "class"}
)
_QUERIES = frozenset({"query", "q", "text", "term", "terms", "search", "pattern", "keywords", "question", "words"})
_TEXTS = frozenset(
    {
        "note",
        "body",
        "comment",
        "content",
        "description",
        "message",
        "reason",
        "summary",
        "title",
        "goal",
        "text",
        "subject",
    }
)
_QUOTES = frozenset({"note", "body", "comment", "content", "text", "description"})
SAME: dict[str, tuple[str, ...]] = {
    "annotate": ("note", "annotate", "comment", "notiz", "notiere", "kommentier", "merke"),
    "rename": ("rename", "umbenenn", "benenne"),
    "remove": ("remove", "delete", "drop", "lösch", "entfern"),
    "propose": ("rename", "remove", "delete", "drop", "umbenenn", "benenne", "lösch", "entfern"),
    "dependencies": ("depend", "import", "uses", "used", "abhäng", "verwend", "benutz"),
    "overview": (
        "overview",
        "many",
        "count",
        "überblick",
        "viele",
        "anzahl",
        "most",
        "workspace",
        "arbeitsbereich",
        "meisten",
        "summar",
        "zusammenfass",
    ),
    "module": (),  # people call a package a module, too
    "class": ("class", "classe", "klasse"),
    "package": ("package", "paket"),
    "function": ("function", "funktion"),
    "incoming": ("used by", "who uses", "depends on it", "dependents", "wer benutzt", "wer verwendet", "uses it"),
}


def words_of(name: str) -> list[str]:
    """A tool's or parameter's name as words."""
    return [word for word in re.split(r"[^a-z]+|(?<=[a-z])(?=[A-Z])", name.lower()) if word]


def is_read(tool: ToolSchema) -> bool:
    """Whether the name says that it only looks."""
    return bool(_READ & set(words_of(tool["name"]))) and not writes(tool["name"])


def writes(name: str) -> bool:
    """Whether a tool's name says that it changes something."""
    return (words_of(name) or [""])[0] in ("create", "delete", "remove", "update", "set", "add", "propose", "annotate")


def score(tool: ToolSchema, reading: Reading) -> float:
    """How well a tool fits the words of the message."""
    text = f" {reading.text.lower()} "
    points = 0.0
    for word in words_of(tool["name"]):
        if any(same in text for same in SAME.get(word, (word[:6],))):
            points += 3
    described = tool["description"].lower()
    points += sum(1 for term in reading.terms if len(term) > 3 and term.lower()[:6] in described)
    if tool["name"].lower() in text:
        points += 10
    return points


def arguments_for(
    tool: ToolSchema, reading: Reading, *, term: str = "", thing: Thing | None = None
) -> dict[str, Any] | None:
    """Arguments that the schema accepts, or None when a required one cannot be known.

    Args:
        term: what a search is for.
        thing: what the call is about.
    """
    schema = tool["input_schema"]
    filler = _Filler(reading, term, thing, schema.get("$defs", {}))
    arguments = filler.object(schema)
    if arguments is None or not valid(schema, arguments):
        return None
    if not is_read(tool) and not filler.sure:
        return None
    return arguments


def valid(schema: Mapping[str, Any], value: Any) -> bool:
    import jsonschema

    return bool(jsonschema.Draft202012Validator(dict(schema)).is_valid(value))


_NONE = object()


class _Filler:
    def __init__(self, reading: Reading, term: str, thing: Thing | None, defs: Mapping[str, Any]) -> None:
        self.reading = reading
        self.text = reading.text.lower()
        self.term = term
        self.thing = thing or (reading.named[0] if reading.named else None)
        self.defs = defs
        self.sure = False  # an argument names a thing that the data holds

    def object(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        out: dict[str, Any] = {}
        for name, raw in properties.items():
            value = self.value(name, self._resolved(raw), needed=name in required)
            if value is not _NONE:
                out[name] = value
            elif name in required:
                return None
        return out

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        if "$ref" in schema:
            return self._resolved(self.defs.get(str(schema["$ref"]).rpartition("/")[2], {}))
        options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
        if options:
            return {**self._resolved(options[0]), **({"default": schema["default"]} if "default" in schema else {})}
        return schema

    def value(self, name: str, schema: Mapping[str, Any], *, needed: bool) -> Any:
        """A value for one parameter; `_NONE` leaves it out."""
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._choice(schema["enum"], needed)
        kind = schema.get("type")
        if kind == "string":
            return self._string(name, schema, needed)
        if kind in ("integer", "number"):
            return self._number(schema, needed)
        if kind == "boolean":
            return bool(schema.get("default", False)) if needed else _NONE
        if kind == "array":
            return self._array(name, self._resolved(schema.get("items", {})), needed, schema)
        if kind == "object" or "properties" in schema:
            return self._mapping(name, schema, needed)
        return self.reading.text[:200] if needed else _NONE

    def _choice(self, options: list[Any], needed: bool) -> Any:
        for option in options if needed or not self.reading.is_step else ():
            words = SAME.get(str(option), (str(option).lower(),))
            if isinstance(option, str) and any(says(self.text, word) for word in words):
                return option
        return options[0] if needed else _NONE

    def _number(self, schema: Mapping[str, Any], needed: bool) -> Any:
        low, high = schema.get("minimum", 0), schema.get("maximum", 10**9)
        fitting = [number for number in self.reading.numbers if low <= number <= high]
        if fitting and not self.reading.is_step:
            return fitting[0]
        if not needed:
            return _NONE
        return schema.get("default", min(max(low, 10), high))

    def _string(self, name: str, schema: Mapping[str, Any], needed: bool) -> Any:
        words, longest = set(words_of(name)), schema.get("maxLength", 4000)
        if schema.get("format") in ("uuid", "date", "date-time", "email", "uri") or "pattern" in schema:
            return _NONE
        if words & _QUERIES and self.term:
            return self.term[:longest]
        if words & _KEYS and not words & {"new", "to"}:
            return self._key(needed)
        if words & {"new", "to"} and self.reading.quoted:
            return self.reading.quoted[-1][:longest]
        if not needed:
            return _NONE
        if words & _TEXTS:
            keys = {self.thing.key, self.thing.name} if self.thing else set()
            if words & _QUOTES and self.reading.noted:
                return self.reading.noted[:longest]
            said = [text for text in self.reading.quoted if text not in keys]
            return (said[-1] if said and words & _QUOTES else self.reading.task)[:longest]
        return self.term[:longest] if self.term else _NONE

    def _key(self, needed: bool) -> Any:
        if not needed and not self.reading.named:
            return _NONE
        if self.thing is not None:
            self.sure = True
            return self.thing.key
        if needed and self.term and re.search(r"[.:/_]|[a-z][A-Z]", self.term):
            return self.term
        return _NONE

    def _array(self, name: str, items: Mapping[str, Any], needed: bool, schema: Mapping[str, Any]) -> Any:
        wanted = self._verb(name)
        if items.get("type") == "string" and self.thing is not None and (needed or wanted):
            self.sure = True
            return [self.thing.key]
        if not needed:
            return _NONE
        if items.get("type") == "string":
            return self.reading.terms[:3] or _NONE
        one = self.value(name, items, needed=True)
        return [one] if one is not _NONE else ([] if not schema.get("minItems") else _NONE)

    def _mapping(self, name: str, schema: Mapping[str, Any], needed: bool) -> Any:
        to = [
            text for text in self.reading.quoted if self.thing is None or text not in (self.thing.key, self.thing.name)
        ]
        if self._verb(name) and self.thing is not None and to and not schema.get("properties"):
            self.sure = True
            return {self.thing.key: to[-1]}
        if not needed:
            return _NONE
        value = self.object(schema)
        return _NONE if value is None else value

    def _verb(self, name: str) -> bool:
        return any(same in self.text for word in words_of(name) for same in SAME.get(word, (word,)))


def example(schema: Mapping[str, Any], reading: Reading) -> Any:
    """A value that follows a schema for structured answers, filled from the message; None when that cannot be done."""
    filler = _Filler(reading, reading.terms[0] if reading.terms else "none", None, schema.get("$defs", {}))
    value = filler.value("answer", filler._resolved(schema), needed=True)
    return value if value is not _NONE and valid(schema, value) else None


def search_tool(tools: list[ToolSchema]) -> ToolSchema | None:
    """The tool that looks for words."""
    return next((tool for tool in tools if _SEARCH & set(words_of(tool["name"]))), None)


def needs(tool: ToolSchema) -> set[str]:
    """The words in the names of what it cannot do without."""
    return {word for name in tool["input_schema"].get("required", ()) for word in words_of(name)}


def about_a_thing(tool: ToolSchema) -> bool:
    """Whether it looks at one thing that is known by its key."""
    required = tool["input_schema"].get("required", ())
    return is_read(tool) and len(required) == 1 and bool(needs(tool) & _KEYS)


def about_everything(tool: ToolSchema) -> bool:
    """Whether it needs to know nothing to look."""
    return is_read(tool) and not tool["input_schema"].get("required")


def direction_of(tool: ToolSchema) -> str:
    """The parameter that says which way dependencies are followed; empty when there is none."""
    for name, schema in tool["input_schema"].get("properties", {}).items():
        if {"incoming", "outgoing"} <= set(schema.get("enum", ())):
            return str(name)
    return ""


def has_direction(tool: ToolSchema) -> bool:
    """Whether it follows dependencies."""
    return bool(direction_of(tool))


def same_call(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return json.dumps(left, sort_keys=True, default=str) == json.dumps(right, sort_keys=True, default=str)
