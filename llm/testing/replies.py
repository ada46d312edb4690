"""What a script is made of: replies, and the short words that make them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm import errors
from llm.errors import LLMError
from llm.testing.gate import Gate
from llm.types import LLMMessage, LLMResponse, ModelRequest, StopReason, ToolCall, Usage

DEFAULT_USAGE = Usage(input_tokens=10, output_tokens=5)


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer.

    Args:
        response: the whole answer; a call without an id gets one when it is played.
        pieces: how its text is cut when streamed; None: word by word.
        error: raised after the pieces, in place of the response.
        gate: the answer waits at it, after `gate_after` pieces.
        delay_s: pause before each piece, seconds; only the loopback server keeps it.
    """

    response: LLMResponse
    pieces: tuple[str, ...] | None = None
    error: LLMError | None = None
    gate: Gate | None = None
    gate_after: int = 0
    delay_s: float = 0.0

    def text_pieces(self) -> list[str]:
        """The text as it is streamed; joined, it is the response's content."""
        if self.pieces is not None:
            return list(self.pieces)
        words = self.response.content.split(" ")
        return [word + " " for word in words[:-1]] + ([words[-1]] if words[-1] else [])


Playable = str | LLMResponse | LLMError | Reply
Answer = Playable | Callable[[ModelRequest], Playable]
Predicate = Callable[[ModelRequest], bool]


@dataclass(slots=True)
class When:
    """Answers calls whose request fits, wherever they come in the order; for parallel work.

    Args:
        fits: tells whether the request is meant.
        answer: what such a call gets.
        times: how often; None: always.
    """

    fits: Predicate
    answer: Answer
    times: int | None = 1


def say(
    text: str,
    *,
    pieces: Sequence[str] | None = None,
    thinking: str = "",
    usage: Usage | None = None,
    stop_reason: StopReason = "end_turn",
    gate: Gate | None = None,
    gate_after: int = 0,
    delay_s: float = 0.0,
) -> Reply:
    """An answer in words."""
    if pieces is not None and "".join(pieces) != text:
        raise ValueError("the pieces, joined, must be the text")
    response = LLMResponse(content=text, thinking=thinking, usage=usage or DEFAULT_USAGE, stop_reason=stop_reason)
    cut = tuple(pieces) if pieces is not None else None
    return Reply(response, pieces=cut, gate=gate, gate_after=gate_after, delay_s=delay_s)


def call(name: str, /, **arguments: Any) -> Reply:
    """An answer that calls one tool."""
    return calls((name, arguments))


def calls(
    *each: Reply | tuple[str, Mapping[str, Any]],
    text: str = "",
    thinking: str = "",
    usage: Usage | None = None,
    gate: Gate | None = None,
) -> Reply:
    """An answer that calls several tools, in order: `calls(call("a"), call("b", x=1), text="Let me look.")`."""
    made: list[ToolCall] = []
    for one in each:
        if isinstance(one, Reply):
            made.extend(one.response.tool_calls or [])
        else:
            made.append(ToolCall(id="", name=one[0], arguments=dict(one[1])))
    response = LLMResponse(
        content=text, tool_calls=made, stop_reason="tool_use", thinking=thinking, usage=usage or DEFAULT_USAGE
    )
    return Reply(response, gate=gate)


def cut(text: str, error: LLMError) -> Reply:
    """Streams `text`, then fails with `error`."""
    return Reply(LLMResponse(content=text, usage=DEFAULT_USAGE), error=error)


def held(gate: Gate, answer: Playable) -> Reply:
    """`answer`, once the gate is open."""
    return replace(as_reply(answer), gate=gate)


def as_reply(answer: Playable) -> Reply:
    """Any playable form as a `Reply`."""
    match answer:
        case Reply():
            return answer
        case str():
            return say(answer)
        case LLMResponse():
            return Reply(answer)
        case LLMError():
            return Reply(LLMResponse(content=""), pieces=(), error=answer)
    raise TypeError(f"a script holds str, LLMResponse, LLMError, Reply or a function of the request, not {answer!r}")


def load(path: Path) -> list[Playable]:
    """A script file: a JSON array of replies, each a string or
    `{content?, thinking?, tool_calls?: [{name, arguments}], usage?, stop_reason?}` or `{error: code, retry_after_s?}`.
    """
    items = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(items, list):
        raise ValueError(f"{path}: a script is a JSON array of replies")
    return [_from_json(item, f"{path}[{index}]") for index, item in enumerate(items)]


def _from_json(item: Any, where: str) -> Playable:
    if isinstance(item, str):
        return item
    if isinstance(item, dict) and "error" in item:
        return _error_from_json(item, where)
    if not isinstance(item, dict) or not item.keys() <= {"content", "thinking", "tool_calls", "usage", "stop_reason"}:
        raise ValueError(f"{where}: not a reply: {item!r}")
    tool_calls = [
        ToolCall(id=call.get("id", ""), name=call["name"], arguments=call.get("arguments", {}))
        for call in item.get("tool_calls", [])
    ]
    return LLMResponse(
        content=item.get("content", ""),
        thinking=item.get("thinking", ""),
        tool_calls=tool_calls or None,
        usage=item.get("usage", DEFAULT_USAGE),
        stop_reason=item.get("stop_reason", "tool_use" if tool_calls else "end_turn"),
    )


def _error_from_json(item: dict[str, Any], where: str) -> LLMError:
    wanted = item["error"] if str(item["error"]).startswith("llm.") else f"llm.{item['error']}"
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, LLMError) and cls.code == wanted:
            error: LLMError = cls()
            error.retry_after_s = item.get("retry_after_s")
            return error
    raise ValueError(f"{where}: no LLMError has the code {wanted!r}")


def last_user_text(request: ModelRequest) -> str:
    """The newest user message's text, or an empty one."""
    return next((m.content for m in reversed(request.messages) if m.role == "user"), "")


def user_said(text: str) -> Predicate:
    """Fits when the newest user message holds `text`."""
    return lambda request: text in last_user_text(request)


def offers(tool: str) -> Predicate:
    """Fits when the request offers the tool."""
    return lambda request: any(schema["name"] == tool for schema in request.tools)


def after(tool: str) -> Predicate:
    """Fits when the newest message is the result of that tool."""
    return lambda request: _tool_of(request, request.messages[-1]) == tool


def _tool_of(request: ModelRequest, message: LLMMessage) -> str:
    if message.role != "tool":
        return ""
    if message.tool_name:
        return message.tool_name
    made = [call for m in request.messages for call in m.tool_calls]
    return next((call["name"] for call in made if call["id"] == message.tool_call_id), "")


@dataclass(slots=True)
class Script:
    """A queue of answers that several threads and processes may draw from."""

    answers: list[Answer | When]
    requests: list[ModelRequest] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, request: ModelRequest) -> tuple[int, Reply, Answer | When]:
        """The number of this call (from 1), its answer, and the entry it came from.

        Raises:
            ScriptExhausted: no entry is left for this request.
        """
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
            entry = self._take(request)
        if entry is None:
            raise ScriptExhausted(call=number, last_user_message=last_user_text(request))
        answer = entry.answer if isinstance(entry, When) else entry
        reply = as_reply(answer(request) if callable(answer) else answer)
        return number, _with_ids(reply, number), entry

    def _take(self, request: ModelRequest) -> Answer | When | None:
        for index, entry in enumerate(self.answers):
            if isinstance(entry, When) and entry.fits(request):
                if entry.times is not None:
                    entry.times -= 1
                    if entry.times == 0:
                        del self.answers[index]
                return entry
        for index, entry in enumerate(self.answers):
            if not isinstance(entry, When):
                return self.answers.pop(index)
        return None

    def add(self, entry: Answer | When) -> None:
        """Append an entry."""
        with self._lock:
            self.answers.append(entry)

    def put_back(self, entry: Answer | When) -> None:
        """Return an entry that nobody received to the front of the queue."""
        with self._lock:
            if not isinstance(entry, When):
                self.answers.insert(0, entry)
            elif entry.times is not None:
                entry.times += 1
                if entry not in self.answers:
                    self.answers.insert(0, entry)

    @property
    def remaining(self) -> int:
        """Answers not yet played; those without a limit are not counted."""
        with self._lock:
            return sum((e.times or 0) if isinstance(e, When) else 1 for e in self.answers)


class ScriptExhausted(LLMError):
    """The script holds no answer for this call."""

    code = "llm.script_exhausted"


def _with_ids(reply: Reply, number: int) -> Reply:
    made = reply.response.tool_calls
    if not made or all(one["id"] for one in made):
        return reply
    named = [
        ToolCall(**{**one, "id": one["id"] or f"call_{number}_{index}"}) for index, one in enumerate(made, start=1)
    ]
    return replace(reply, response=replace(reply.response, tool_calls=named))
