"""ScriptedLLM: the one thing in the product that a test may fake (CAP-004)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from llm.base import ModelPort, OnEvent
from llm.errors import LLMCancelled
from llm.ports import CancelToken
from llm.testing.replies import Answer, Predicate, Reply, Script, When, load
from llm.types import End, LLMResponse, ModelEvent, ModelRequest, TextDelta, ThinkingDelta, ToolCallDelta, UsageDelta


class ScriptedLLM(ModelPort):
    """Plays a script of answers, in order, to whoever calls.

    Args:
        answers: strings, `LLMResponse`s, `LLMError`s (raised), replies of `say` / `call` / `calls` / `cut` / `held`,
            functions of the request that return one of these, and `When(predicate, answer, times)`, which is looked at
            first. At least one.
        model_id, provider: what the responses are said to come from.

    Raises:
        ScriptExhausted: from a call when no answer is left; it names the call's number and the last user message.

    Source: CAP-004.
    """

    def __init__(self, answers: Iterable[Answer | When], *, model_id: str = "scripted", provider: str = "scripted"):
        entries = list(answers)
        if not entries:
            raise ValueError("ScriptedLLM needs at least one answer")
        self.model_id = model_id
        self.provider = provider
        self._script = Script(entries)

    @classmethod
    def from_file(cls, path: Path) -> ScriptedLLM:
        """The script of a JSON file (`tests/fixtures/llm_scripts/`)."""
        return cls(load(path))

    @property
    def requests(self) -> list[ModelRequest]:
        """Every request that was made, in order."""
        return self._script.requests

    @property
    def remaining(self) -> int:
        """How many answers have not been played."""
        return self._script.remaining

    def when(self, fits: Predicate, answer: Answer, *, times: int | None = 1) -> ScriptedLLM:
        """Add an answer for the calls that fit; returns itself."""
        self._script.add(When(fits, answer, times))
        return self

    def call(
        self, request: ModelRequest, *, on_event: OnEvent | None = None, cancel: CancelToken | None = None
    ) -> LLMResponse:
        """Play the next answer; `on_event` gets it in pieces."""
        for event in self._events(request, cancel):
            if on_event is not None:
                on_event(event)
            if isinstance(event, End):
                return event.response
        raise AssertionError("an answer ends with End")

    def stream_request(self, request: ModelRequest, *, cancel: CancelToken | None = None) -> Iterator[str]:
        """The next answer's text."""
        for event in self._events(request, cancel):
            if isinstance(event, TextDelta):
                yield event.text

    def _events(self, request: ModelRequest, cancel: CancelToken | None) -> Iterator[ModelEvent]:
        _number, reply, _entry = self._script.next(request)
        response = replace(reply.response, model=reply.response.model or self.model_id)
        said = ""
        if response.thinking:
            yield ThinkingDelta(response.thinking)
        for index, piece in enumerate(reply.text_pieces()):
            if index == reply.gate_after:
                _wait(reply, cancel, said, response)
            _stop_if_cancelled(cancel, said, response)
            said += piece
            yield TextDelta(piece)
        if reply.gate is not None and not reply.gate.is_open:
            _wait(reply, cancel, said, response)
        _stop_if_cancelled(cancel, said, response)
        if reply.error is not None:
            if said and reply.error.partial is None:
                reply.error.partial = LLMResponse(content=said, model=response.model)
            raise reply.error
        for index, made in enumerate(response.tool_calls or []):
            yield ToolCallDelta(index, id=made["id"], name=made["name"], arguments=json.dumps(made["arguments"]))
        yield UsageDelta(response.usage)
        yield End(response)


def _wait(reply: Reply, cancel: CancelToken | None, said: str, response: LLMResponse) -> None:
    if reply.gate is None:
        return
    woken = threading.Event()
    forget = cancel.on_cancel(woken.set) if cancel is not None else lambda: None
    reply.gate.on_open(woken.set)
    woken.wait()
    forget()
    _stop_if_cancelled(cancel, said, response)


def _stop_if_cancelled(cancel: CancelToken | None, said: str, response: LLMResponse) -> None:
    if cancel is not None and cancel.cancelled:
        partial = LLMResponse(content=said, model=response.model, usage=response.usage) if said else None
        raise LLMCancelled(reason=cancel.reason, partial=partial)
