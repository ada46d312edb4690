"""Questions about dependencies: which way they look, and whether they are about the catalogue as a whole."""

from __future__ import annotations

import re
from typing import Literal

from llm.adapters.demo_reading import Reading, Thing, closest, says
from llm.adapters.demo_tools import SAME
from llm.adapters.demo_words import DEPENDENCY

Direction = Literal["incoming", "outgoing"]

_ASKS = re.compile(
    r"\W*(?:who|whom|what|which|where|is|are|does|do|list|show|name|find|tell|give"
    r"|wer|was|welche\w*|wo|wovon|wird|ist|sind|liste|zeig\w*|nenne|finde)\b",
    re.I,
)
_ASKER = re.compile(r"\b(?:which|what|welche\w*)\s+(?:other\s+|anderen?\s+)?(\w+)(?![.:/\w])", re.I)
_COUNTING = re.compile(r"\bhow many\b|\bnumber of\b|\bwie viele\b|\banzahl\b", re.I)
_HOW = re.compile(r"\b(?:how|why|wie|warum|wieso)\b", re.I)
_ACTIVE = re.compile(
    r"\b(?:imports?|importing|uses?|using|depends?|depending|relies|rely|leans?|needs?|inherits?|extends?|subclass(?:es)?"
    r"|importier(?:t|en)|verwende[tn]|benutz(?:t|en)|nutz(?:t|en)|hängt|hängen|braucht|brauchen)\b",
    re.I,
)
_PASSIVE = re.compile(
    r"\b(?:used|imported|needed|depended|relied|inherited|extended|subclassed|verwendet|benutzt|genutzt|importiert)\b",
    re.I,
)
_PASSIVE_BY = re.compile(rf"{_PASSIVE.pattern}.*\b(?:by|in|inside|within|von|durch)\b", re.I)
_OWN = re.compile(r"\b(?:dependenc(?:y|ies)|imports|abhängigkeiten)\b", re.I)  # of a thing: what it needs
_OTHERS = re.compile(
    r"\b(?:importers|dependents|users|consumers|callers|subclasses)\s+(?:of|von)\b|\bdependenc(?:y|ies)\s+on\b", re.I
)
_BREAKS = re.compile(r"\b(?:break|breaks|affected|affects?|impacts?|impacted)\b", re.I)  # by a change to it
_OF = re.compile(r"\b(?:dependenc(?:y|ies)|imports|abhängigkeiten)\s+(?:of|for|in|von|des|der)\b", re.I)
_FROM = re.compile(r"\bwovon\b|\bvon was\b", re.I)
_REACH = re.compile(
    r"\b(?:hard|harder|hardest|risk\w*|danger\w*|difficult|fragile|costl\w*|expensive)\b.*\b(?:change|touch|modify|move)\b"
    r"|\bschwer\w*\b.*\bänder\w*",
    re.I | re.S,
)
_LEADING = re.compile(
    r"\b(?:everything|everybody|everyone|most|all|many|alles?|meisten)\b(?:\s+\w+){0,3}\s+"
    r"(?:depends?|rel(?:y|ies)|leans?|uses?|imports?|needs?|hängt|hängen|verwende[tn]|benutz(?:t|en)|ab)\b"
    r"|\bmost[ -](?:used|imported|depended|important|popular|central|needed)\b"
    r"|\b(?:used|imported|depended on|needed) (?:the )?most\b"
    r"|\bam (?:meisten|häufigsten) (?:benutz|verwende|importier|genutz)\w*"
    r"|\bmeist(?:benutz|verwende|importier|genutz)\w*",
    re.I,
)


def leading(reading: Reading) -> Literal["", "used", "reach"]:
    """Whether it asks what most others use, or what is hard to change; neither when it names a thing."""
    if any(re.search(r"[._:/]", term) for term in reading.terms) or reading.named:
        return ""
    if _REACH.search(reading.text):
        return "reach"
    return "used" if _LEADING.search(reading.text) else ""


def counting(reading: Reading) -> bool:
    """Whether it asks how many there are of a kind, and not of what is in one thing."""
    return bool(_COUNTING.search(reading.text)) and not any(re.search(r"[._:/]", term) for term in reading.terms)


def counted(reading: Reading) -> list[tuple[str, str, int]]:
    """Where the counts by kind are known and one kind is asked for: repository, kind and number."""
    results = [result.value for result in reading.results if result.success and isinstance(result.value, dict)]
    found = []
    for value in results if counting(reading) else ():
        repositories = value.get("repositories")
        for label, kinds in repositories.items() if isinstance(repositories, dict) else ():
            for kind, number in kinds.items() if isinstance(kinds, dict) else ():
                if isinstance(number, int) and _names(reading, str(kind)):
                    found.append((str(label), str(kind), number))
    return found


def _names(reading: Reading, kind: str) -> bool:
    return any(says(reading.text.lower(), word) for word in (kind, *SAME.get(kind, ())))


def subject(reading: Reading) -> str:
    """The thing that a question about dependencies is about, as the message writes it; empty when it names none."""
    asker = _ASKER.search(reading.text)  # in "which apps use it", the apps are what is asked for
    left_out = asker[1].lower() if asker else ""
    words = (term for term in reading.terms if not DEPENDENCY.fullmatch(term))
    return next((term for term in words if term.lower() != left_out), "")


def direction(reading: Reading) -> Direction | None:
    """Which way a question looks: what the subject depends on, or what depends on it; None for other questions."""
    about = subject(reading)
    if not about or not _ASKS.match(reading.text) or _HOW.search(reading.text):
        return None
    before, _, after = reading.text.partition(about)
    if _OTHERS.search(before) or _BREAKS.search(reading.text):
        return "incoming"
    if _OF.search(before) or _FROM.search(before):
        return "outgoing"
    if _PASSIVE_BY.search(before):  # what is used by it
        return "outgoing"
    if _ACTIVE.search(before):  # what uses it
        return "incoming"
    if _PASSIVE.search(after):  # where it is used
        return "incoming"
    return "outgoing" if _ACTIVE.search(after) or _OWN.search(after) else None


def known(reading: Reading) -> Thing | None:
    """The subject among what snapshot and results hold, or under the key that the message gives."""
    about = subject(reading)
    found = [
        thing
        for thing in closest(reading.things, about)
        if about.lower().rpartition(":")[2] == thing.key.lower().rpartition(":")[2]
    ]
    if found:
        return found[0]
    if re.fullmatch(r"[a-z_]+:[\w.]+", about):
        return Thing(about, about, {})
    return next(iter(closest(reading.found, about)), None)
