"""The one place where model text becomes data (CAP-008, CAP-009): the right value, or a refusal that names the place.

A repair that would have to guess is not made: what comes out is what the text says, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast, overload

from llm.base import OnEvent
from llm.errors import InvalidJSON, LLMRefusal, LLMTruncated, NoJSON, SchemaMismatch, StructuredError, TruncatedJSON
from llm.jsonish import Reader, Unreadable, strict
from llm.ports import BaseLLM, CancelToken
from llm.schema_check import Check, Schema, checker, json_schema, wants_array
from llm.types import LLMMessage, LLMResponse, ModelRequest

M = TypeVar("M")

_INTERESTING = re.compile(r"[{\[]|^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*$|<(/?)think(?:ing)?>", re.M | re.I)
_OPEN_TAG = re.compile(r"\s*<think(?:ing)?>", re.I)
_CLOSE_TAG = re.compile(r"</think(?:ing)?>", re.I)
_FENCE = re.compile(r"(`{3,}|~{3,})[^\n`]*\n")
_JSON_LABELS = {"", "json", "jsonc", "json5", "jsonl", "ndjson"}
_BLANK = re.compile(r"[\s,;]*")
_INVISIBLE = "\ufeff\u200b\u2060"


@dataclass(frozen=True, slots=True)
class Found:
    """A JSON value in a text, or what is left of one (`fault`)."""

    start: int
    end: int
    value: Any = None
    fault: Unreadable | None = None
    foreign: bool = False  # inside a fence of another language


@dataclass(slots=True)
class Scan:
    """What a text holds, in order; `steps` counts the work."""

    text: str
    found: list[Found] = field(default_factory=list)
    unclosed_thinking: bool = False
    steps: int = 0


def normalize_llm_text(raw: str) -> str:
    """The answer without a byte-order mark, leading reasoning in tags, and a fence around all of it (CAP-008)."""
    text = (raw or "").strip(_INVISIBLE).strip()
    opened = _OPEN_TAG.match(text)
    closed = _CLOSE_TAG.search(text)
    if opened:
        text = text[closed.end() :] if closed else text[opened.end() :]
    elif closed and text[:1] not in '{["':
        text = text[closed.end() :]
    return _without_fence(text.strip())


def _without_fence(text: str) -> str:
    """The inside of a fence that holds the whole text, closed or not."""
    opened = _FENCE.match(text)
    if not opened:
        return text
    inside = text[opened.end() :]
    last = inside.rfind("\n") + 1
    if inside[last:].strip().startswith(opened[1]):
        inside = inside[:last]
    return text if re.search(rf"^[ \t]*{opened[1]}", inside, re.M) else inside.strip()


def extract_json_array(raw: str) -> list[dict[str, Any]] | None:
    """The answer's JSON array of objects, or None when it holds none, a broken one, or other things than objects.

    Source: CAP-009.
    """
    try:
        return cast("list[dict[str, Any]]", extract(raw, {"type": "array", "items": {"type": "object"}}))
    except StructuredError:
        return None


def extract_json_object(raw: str) -> dict[str, Any] | None:
    """The answer's JSON object, or None when it holds none or a broken one.

    Source: CAP-009.
    """
    try:
        return cast("dict[str, Any]", extract(raw, {"type": "object"}))
    except StructuredError:
        return None


@overload
def extract(text: str, schema: type[M]) -> M: ...
@overload
def extract(text: str, schema: Schema) -> Any: ...
def extract(text: str, schema: type[M] | Schema) -> Any:
    """The answer in a model's text, checked.

    Of several values the last one that follows the schema is the answer, unless something broken comes after it.

    Args:
        text: what the model said.
        schema: a JSON Schema, or a Pydantic model (or any type Pydantic can check), whose instance is returned.

    Raises:
        NoJSON: there is none.
        TruncatedJSON: it stops before its end.
        InvalidJSON: it is broken or ambiguous; `line`, `column` and `reason` say where and why.
        SchemaMismatch: `problems` names the places that do not follow the schema.

    Source: CAP-009.
    """
    check = checker(schema)
    whole = text.strip(_INVISIBLE).strip()
    value = _plain(whole)
    if value is not _NOTHING:
        return _checked([Found(0, len(whole), value)], whole, check)
    seen = scan(whole)
    candidates = _candidates(seen, wants_array=wants_array(schema))
    if candidates:
        return _checked(candidates, whole, check)
    unescaped = _unescaped(whole) if not seen.found else ""
    if unescaped:
        return extract(unescaped, schema)
    raise NoJSON(characters=len(text))


def scan(text: str) -> Scan:
    """All JSON in a text, in one pass: its work grows with the text's length, whatever the text is."""
    result = Scan(text)
    reader = Reader(text)
    fence: str | None = None
    foreign = False
    at = 0
    while (match := _INTERESTING.search(text, at)) is not None:
        result.steps += 1
        at = match.end()
        if match[1]:
            if fence is None:
                fence, foreign = match[1], match[2].lower() not in _JSON_LABELS
            elif match[1].startswith(fence):
                fence, foreign = None, False
        elif match[3] is not None:
            at = _past_thinking(result, match)
        else:
            one = replace(_read(reader, match.start()), foreign=foreign)
            at = one.end
            if one.fault is None or one.fault.began or one.fault.ended:
                result.found.append(one)
    result.steps += reader.steps
    return result


def _past_thinking(result: Scan, tag: re.Match[str]) -> int:
    if tag[3]:  # a closing tag: all before it was reasoning
        result.found.clear()
        return tag.end()
    closing = None if result.unclosed_thinking else _CLOSE_TAG.search(result.text, tag.end())
    if closing is None:
        result.unclosed_thinking = True
        return tag.end()
    return closing.end()


def _read(reader: Reader, start: int) -> Found:
    try:
        value, end = reader.read(start)
    except Unreadable as fault:
        if fault.ended:
            return Found(start, len(reader.text), fault=fault)
        if not fault.began and str(fault) != "nested too deeply":
            return Found(start, max(fault.at, start + 1), fault=fault)
        fault.began = True
        return Found(start, _close_of(reader, start), fault=fault)
    return Found(start, end, value)


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[{\[]|[}\]]', re.S)


def _close_of(reader: Reader, start: int) -> int:
    """Where the brackets that open at `start` are closed again; the text's end when they are not."""
    depth = 0
    for match in _BRACKETS.finditer(reader.text, start):
        reader.steps += 1
        if match[0] in ("{", "["):
            depth += 1
        elif match[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return match.end()
    return len(reader.text)


def _candidates(seen: Scan, *, wants_array: bool) -> list[Found]:
    """What may be the answer: own values before those of other languages' fences; JSON lines as one array."""
    found = [one for one in seen.found if not one.foreign] or seen.found
    if seen.unclosed_thinking and found and seen.text[found[-1].end :].strip("`~ \t\r\n"):
        raise InvalidJSON(reason="the reasoning was never closed, so an answer cannot be told from a draft")
    if not wants_array or any(isinstance(one.value, list) and _objects(one.value) for one in found):
        return found
    return [_as_lines(group) if len(group) > 1 else group[0] for group in _groups(found, seen.text)]


def _groups(found: list[Found], text: str) -> Iterator[list[Found]]:
    """Objects that stand beside each other with nothing between them but blanks and commas."""
    group: list[Found] = []
    for one in found:
        between = text[group[-1].end : one.start] if group else ""
        joins = (
            group and isinstance(one.value, dict) and isinstance(group[-1].value, dict) and _BLANK.fullmatch(between)
        )
        if group and not joins:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _adjacent(left: Found, right: Found, text: str) -> bool:
    both = isinstance(left.value, dict) and isinstance(right.value, dict)
    return both and _BLANK.fullmatch(text, left.end, right.start) is not None


def _as_lines(group: list[Found]) -> Found:
    return Found(group[0].start, group[-1].end, [one.value for one in group])


def _objects(value: list[Any]) -> bool:
    return all(isinstance(item, dict) for item in value)


class _Nothing:
    pass


_NOTHING = _Nothing()


def _plain(text: str) -> Any:
    """The whole text as JSON, also when it was put into a JSON string once more."""
    if not text:
        return _NOTHING
    try:
        value = strict(text)
        if isinstance(value, str) and value.strip()[:1] in ("{", "["):
            value = strict(value)
    except ValueError:
        return _NOTHING
    return value


def _unescaped(text: str) -> str:
    """A text whose quotes are all escaped, as if it had been cut out of a string."""
    if '\\"' not in text or re.search(r'(?<!\\)"', text):
        return ""
    try:
        return cast(str, strict('"' + text.replace("\n", "\\n") + '"'))
    except ValueError:
        return ""


def _checked(candidates: list[Found], text: str, check: Check) -> Any:
    """The last candidate that passes; nothing broken may come after it."""
    problems: list[str] = []
    for index in range(len(candidates) - 1, -1, -1):
        one = candidates[index]
        if one.fault is not None:
            if one.fault.ended:
                line, column = _place(text, one.start)
                raise TruncatedJSON(line=line, column=column, reason="it begins here and never ends")
            raise _invalid(text, one.fault.at, str(one.fault))
        value, wrong = check(one.value)
        if not wrong:
            before = candidates[index - 1] if index else None
            if before and _adjacent(before, one, text) and before.value != one.value and not check(before.value)[1]:
                raise _invalid(text, one.start, "a second value follows at once; which one is meant?")
            return value
        problems = problems or wrong
    raise SchemaMismatch(problems=problems)


def _invalid(text: str, at: int, reason: str) -> InvalidJSON:
    line, column = _place(text, at)
    return InvalidJSON(line=line, column=column, reason=reason)


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


@dataclass(frozen=True, slots=True)
class Structured:
    """A checked answer, and every response it took (their usage was paid)."""

    value: Any
    responses: tuple[LLMResponse, ...]


def ask(
    llm: BaseLLM,
    request: ModelRequest,
    schema: type[Any] | Schema,
    *,
    on_event: OnEvent | None = None,
    cancel: CancelToken | None = None,
) -> Structured:
    """Ask for a structured answer; a faulty one is asked for again once, with its faults named.

    Args:
        llm: the model.
        request: the question; the schema is added to it, for the providers that can hold an answer to one.
        schema: as for `extract`.

    Raises:
        StructuredError: the second answer was faulty, too.
        LLMTruncated: the answer was cut by its token limit; asking again would cut it again.
        LLMRefusal: the model declined.
        LLMError: a call failed.

    Source: CAP-009.
    """
    request = replace(request, response_schema=json_schema(schema))
    first = llm.call(request, on_event=on_event, cancel=cancel)
    try:
        return Structured(_whole(first, schema), (first,))
    except StructuredError as fault:
        said = LLMMessage("assistant", first.content or "(nothing)", blocks=first.blocks)
        again = LLMMessage("user", _repair_note(fault))
    second = llm.call(replace(request, messages=(*request.messages, said, again)), on_event=on_event, cancel=cancel)
    return Structured(_whole(second, schema), (first, second))


def _whole(response: LLMResponse, schema: type[Any] | Schema) -> Any:
    if response.stop_reason == "refusal":
        raise LLMRefusal(model=response.model, message=response.content[:300])
    if response.stop_reason in ("max_tokens", "context_full"):
        raise LLMTruncated(model=response.model, characters=len(response.content))
    return extract(response.content, schema)


def _repair_note(fault: StructuredError) -> str:
    faults = fault.details.get("problems") or [
        " ".join(f"{name} {fault.details[name]}" for name in ("line", "column", "reason") if name in fault.details)
        or str(fault.__doc__)
    ]
    lines = "\n".join(f"- {one}" for one in cast("list[str]", faults))
    return f"That answer cannot be used:\n{lines}\nAnswer again with the whole corrected JSON and nothing else."
