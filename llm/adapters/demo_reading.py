"""What the stand-in understands of a request: the words, the context, the things they name, the results so far."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llm.adapters.demo_words import DEPENDENCY, GERMAN, STOP, filled_in
from llm.types import LLMMessage, ModelRequest

_MARKED = re.compile(r"<tool_result [^>]*>\n(?P<inside>.*)\n</tool_result>", re.S)
_OPENING, _CLOSING = "<context>", "</context>"
_EARLIER = re.compile(r"\n*Earlier steps:\n(.*)", re.S)
_QUOTED = re.compile(
    r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|„([^“”\n]{1,200})[“”]|“([^”\n]{1,200})”|(?<!\w)'([^'\n]{1,200})'(?!\w)"
)
_WORD = re.compile(r"[^\W\d_][\w.:/-]*\w|[^\W\d_]")
_NUMBER = re.compile(r"\b(?:top|first|limit|most|to|erste\w*|höchstens|zu)\s+(\d{1,6})\b", re.I)
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]")
_NODES = 4000
# A key as the catalogue writes it; without a dot only after a word that is sure to be a kind.
_TARGET = re.compile(
    r"(?<![\w.:/-])(?!note:|comment:|notiz:)(?:[a-z]\w*:(?=\w+\.)|(?:package|module|class|function):)"
    r"[^\W\d]\w*(?:[.:]\w+)*(?![\w/])",
    re.I,
)
# What a person wants written down: behind a colon, or behind the word for it.
_NOTED = re.compile(
    r"(?::|\b(?:with|mit)\s+(?:(?:the|a|der|einer|dem|einem)\s+)?(?:note|comment|text|notiz|kommentar)\b:?"
    r"|\b(?:saying|that says)\b:?)\s+(?P<behind>\S.*)"
    r"|\b(?:note|comment|notiz)\s+(?!to\b|on\b|for\b|zu\b)(?P<between>\S.*?)\s+(?:to|on|for|zu)\s+`?[a-z]\w*:[\w.:]+`?\W*$",
    re.I | re.S,
)
_NOTING = re.compile(r"\b(?:note|annotat|comment|notiz|notier|kommentier|merke)", re.I)
_BACKTICKED = re.compile(r"`([\w.:/-]+[.:/][\w.:/-]+)`")


@dataclass(frozen=True, slots=True)
class Thing:
    """Something the data names: a key, what people call it, and the object it came from."""

    key: str
    name: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """One call made since the message, and its envelope; None while there is none."""

    tool: str
    arguments: dict[str, Any]
    success: bool
    value: Any
    error: str


class Reading:
    """A request, read; everything is worked out when it is asked for."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self._at = _task_index(request.messages)

    @cached_property
    def system(self) -> str:
        system = self.request.system
        return system if isinstance(system, str) else "\n\n".join(block.text for block in system)

    @cached_property
    def raw(self) -> str:
        """The newest message of a person (or of a plan), its context with it."""
        return self.request.messages[self._at].content

    @cached_property
    def text(self) -> str:
        """The person's words alone; a very long message by its beginning and its end."""
        words = _EARLIER.sub("", _split(self.raw)[0]).strip()
        return words if len(words) <= 6000 else f"{words[:4000]}\n{words[-2000:]}"

    @cached_property
    def earlier(self) -> str:
        """What earlier steps of a plan have found."""
        found = _EARLIER.search(self.raw)
        return found[1].strip() if found else ""

    @cached_property
    def goal(self) -> str:
        """The plan's goal, in a step of a plan."""
        found = re.search(r"plan's goal: (.+)", self.system)
        return found[1].strip() if found else ""

    @cached_property
    def is_step(self) -> bool:
        return bool(self.goal) or re.match(r"Step \d+", self.text) is not None

    @cached_property
    def task(self) -> str:
        """What is asked for, in one line."""
        line = re.sub(r"^Step \d+(?:, [\w-]+)?: ?", "", self.text.split("\n\n")[0]).strip()
        return re.sub(r"\s+", " ", line)[:300]

    @cached_property
    def snapshot(self) -> dict[str, Any]:
        """The newest snapshot that the history holds."""
        for message in reversed(self.request.messages[: self._at + 1]):
            for context in reversed(_contexts(message.content)) if message.role == "user" else ():
                if isinstance(context.get("snapshot"), dict):
                    found: dict[str, Any] = context["snapshot"]
                    return found
        return {}

    @cached_property
    def plans_ended(self) -> list[dict[str, Any]]:
        """What became of plans since the turn before."""
        told = [context.get("plans_ended") for context in _contexts(self.raw)]
        plans = told[-1] if told else None
        return [plan for plan in plans if isinstance(plan, dict)] if isinstance(plans, list) else []

    @cached_property
    def results(self) -> list[Result]:
        """What the calls since the message have given."""
        calls: dict[str, tuple[str, dict[str, Any]]] = {}
        found = []
        for message in self.request.messages[self._at + 1 :]:
            for call in message.tool_calls:
                calls[call["id"]] = (call["name"], call["arguments"])
            if message.role == "tool":
                tool, arguments = calls.get(message.tool_call_id, (message.tool_name, {}))
                found.append(_result(tool, arguments, message))
        return found

    @cached_property
    def rounds(self) -> int:
        """How many rounds of calls were made since the message."""
        return sum(bool(message.tool_calls) for message in self.request.messages[self._at + 1 :])

    @cached_property
    def german(self) -> bool:
        words = [word.lower() for word in _WORD.findall(self.text)[:200]]
        hits = sum(word in GERMAN for word in words)
        return hits >= 2 or (hits == 1 and len(words) <= 3) or bool(re.search("[äöüß]", self.text.lower()) and hits)

    @cached_property
    def quoted(self) -> list[str]:
        """What stands in quotes or backticks."""
        source = self.task if self.is_step else self.text
        return [next(filter(None, groups)).strip() for groups in _QUOTED.findall(source) if any(groups)]

    @cached_property
    def order(self) -> str:
        """What the message tells to do, up to the words that it wants written down."""
        return self.text[: _start(self._note)] if self._note else self.text

    @cached_property
    def noted(self) -> str:
        """The words that the message wants written down; empty when it names none."""
        words = (self._note["behind"] or self._note["between"]).strip() if self._note else ""
        quote = _QUOTED.match(words)
        return next(filter(None, quote.groups())).strip() if quote else words

    @cached_property
    def _note(self) -> re.Match[str] | None:
        found = _NOTED.search(self.text)
        return found if found and _NOTING.search(self.text[: _start(found)]) else None

    @cached_property
    def target(self) -> Thing | None:
        """The thing whose exact key the message gives, whether or not the data at hand lists it."""
        found = _TARGET.search(self.text)
        if found is None:
            return None
        known = (thing for thing in self.things if thing.key.lower() == found[0].lower())
        return next(known, Thing(found[0], found[0].rpartition(":")[2], {}))

    @cached_property
    def numbers(self) -> list[int]:
        return [int(number) for number in _NUMBER.findall(self.text)]

    @cached_property
    def terms(self) -> list[str]:
        """The words that say what it is about, the most exact first."""
        source = self._said
        words = [word.strip(".:/-") for word in _WORD.findall(source)]
        plain = [word for word in words if word.lower() not in STOP and len(word) > 1]
        if self.is_step and plain and source.startswith(plain[0]) and plain[0].isalpha():
            plain = plain[1:]  # a step begins with an order
        exact = [word for word in plain if re.search(r"[._:/]", word) or _CAMEL.search(word)]
        if not self.german:  # a capital inside a sentence is a name
            exact += [word for word in plain if word[0].isupper() and not source.startswith(word)]
        quoted = [text for text in self.quoted if len(text) <= 80 and not self._is_sentence(text)]
        plain.sort(key=lambda word: DEPENDENCY.fullmatch(word) is not None)
        return list(dict.fromkeys([*quoted, *exact, *plain]))[:12]

    @property
    def _said(self) -> str:
        """What a person (or somebody's plan) says, without the stand-in's own sentences."""
        if not self.is_step:
            return self.text
        own = filled_in(self.task)
        if own is None:
            return self.task
        return own if "`" in own else self.goal or own

    @cached_property
    def subjects(self) -> list[str]:
        """What it is about, the most telling word first; in a step, what the plan's goal names goes before."""
        if not self.is_step:
            return self.terms
        goal = Reading(ModelRequest(messages=(LLMMessage("user", self.goal),))).terms if self.goal else []
        return list(dict.fromkeys([*(term for term in self.terms if term in goal), *goal, *self.terms]))

    @cached_property
    def empty(self) -> str:
        """What the data says about holding nothing; empty when it holds something, or says nothing."""
        parts = [result.value for result in self.results if result.success]
        parts += [self.snapshot, *self.snapshot.values()]
        return next(
            (part["empty"] for part in parts if isinstance(part, dict) and _is_label(part.get("empty"), 600)), ""
        )

    @cached_property
    def things(self) -> list[Thing]:
        """All things that results and snapshot name, results first."""
        found = {thing.key: thing for thing in self.found}
        for thing in _things(self.snapshot):
            found.setdefault(thing.key, thing)
        return list(found.values())

    @cached_property
    def found(self) -> list[Thing]:
        """The things that the results name."""
        found: dict[str, Thing] = {}
        for result in self.results:
            for thing in _things(result.value) if result.success else ():
                found.setdefault(thing.key, thing)
        return list(found.values())

    @cached_property
    def named(self) -> list[Thing]:
        """The things that the message names, the most exact match first."""
        text = self.text.lower()
        terms = {term.lower() for term in self.terms} | {text.lower() for text in self.quoted}
        terms |= {term.partition(":")[2] for term in terms if ":" in term}
        exact, close = [], []
        for thing in self.things:
            key, name = thing.key.lower(), thing.name.lower()
            if key in terms or key.partition(":")[2] in terms or (len(key) > 3 and _mentions(text, key)):
                exact.append(thing)
            elif name in terms or re.split(r"[.:/]", key)[-1] in terms:
                close.append(thing)
        return exact + close

    @staticmethod
    def _is_sentence(text: str) -> bool:
        return text.count(" ") >= 4


def closest(things: Iterable[Thing], term: str) -> list[Thing]:
    """Things by how well a term names them: the whole key, then a package or module of that name, then the rest."""
    term = term.lower()
    bare = term.rpartition(":")[2]

    def distance(thing: Thing) -> int:
        key = thing.key.lower()
        whole, last = key.rpartition(":")[2], re.split(r"[.:/]", key)[-1]
        kind = thing.facts.get("kind") or key.partition(":")[0]
        if bare == whole:
            return 0 if term == key else 1
        container = kind in ("package", "module", "app")
        if bare in (last, thing.name.lower()) or whole.endswith(f".{bare}"):
            return 2 if container else 3
        return 4 if container else 5

    return sorted(things, key=distance)


def _start(note: re.Match[str]) -> int:
    return note.start("behind" if note["behind"] else "between")


def keys_in(text: str) -> list[str]:
    """The keys that stand in backticks; where any names its kind, what does not is a path or a file's name."""
    found: list[str] = _BACKTICKED.findall(text)
    return [key for key in found if re.match(r"[a-z]\w*:[^\W\d]", key)] or found


def says(text: str, word: str) -> bool:
    """Whether a text holds a word or its plural, by itself and not as a part of a key or a name."""
    return re.search(rf"(?<![\w.:/-]){re.escape(word)}(?:e|e?s|e?n)?(?![\w/-]|[.:]\w)", text) is not None


def _mentions(text: str, key: str) -> bool:
    """Whether a text names a key, and not a longer one that holds it."""
    return key in text and re.search(rf"(?<![\w.:/-]){re.escape(key)}(?![\w/-]|[.:]\w)", text) is not None


def _contexts(text: str) -> list[dict[str, Any]]:
    found = []
    for block in _split(text)[1]:
        try:
            context = json.loads(block)
        except ValueError:
            continue
        if isinstance(context, dict):
            found.append(context)
    return found


def _split(text: str) -> tuple[str, list[str]]:
    """A message's words, and the context blocks that it holds."""
    words: list[str] = []
    blocks: list[str] = []
    at = 0
    while True:
        start = text.find(_OPENING, at)
        end = text.find(_CLOSING, start) if start >= 0 else -1
        if end < 0:
            return "".join([*words, text[at:]]), blocks
        words.append(text[at:start])
        blocks.append(text[start + len(_OPENING) : end])
        at = end + len(_CLOSING)


def _task_index(messages: tuple[LLMMessage, ...]) -> int:
    """Where the message stands that is being answered: the last of a person that no tool result goes right before."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user" and (index == 0 or messages[index - 1].role != "tool"):
            return index
    return len(messages) - 1


def _result(tool: str, arguments: dict[str, Any], message: LLMMessage) -> Result:
    marked = _MARKED.match(message.content)
    content = marked["inside"] if marked else message.content
    try:
        envelope = json.loads(content)
    except ValueError:
        return Result(tool, arguments, not message.is_error, content, content if message.is_error else "")
    if message.is_error and isinstance(envelope, dict) and set(envelope) == {"error"}:
        return Result(tool, arguments, False, None, str(envelope["error"]))
    if isinstance(envelope, dict) and "success" in envelope:
        good = bool(envelope["success"]) and not message.is_error
        return Result(tool, arguments, good, envelope.get("result"), str(envelope.get("error") or ""))
    return Result(tool, arguments, not message.is_error, envelope, "")


def _things(source: Any) -> Iterator[Thing]:
    open_nodes, seen = [source], 0
    while open_nodes and seen < _NODES:
        node = open_nodes.pop(0)
        seen += 1
        if isinstance(node, dict):
            key = next(
                (node[name] for name in ("key", "path", "name", "id", "title") if _is_label(node.get(name))), None
            )
            if key is not None:
                name = node.get("name") if isinstance(node.get("name"), str) else re.split(r"[.:/]", str(key))[-1]
                yield Thing(str(key), str(name), node)
            open_nodes.extend(value for value in node.values() if isinstance(value, dict | list))
        elif isinstance(node, list):
            open_nodes.extend(value for value in node[:200] if isinstance(value, dict | list))


def _is_label(value: object, longest: int = 200) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest
