"""What the adapters share: provider errors, waits, secrets, thinking tags, and the history they send."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from llm.errors import (
    ContextTooLong,
    LLMAuthenticationError,
    LLMBadRequest,
    LLMConflict,
    LLMError,
    LLMOverloaded,
    LLMPermissionError,
    LLMTimeout,
    MalformedResponse,
    ModelNotFound,
    QuotaExhausted,
    RateLimitError,
    RequestTooLarge,
)
from llm.types import LLMMessage, ModelRequest, SystemBlock, SystemPrompt, Usage

_BY_NAME: dict[str, type[LLMError]] = {
    "insufficient_quota": QuotaExhausted,
    "billing_error": QuotaExhausted,
    "billing": QuotaExhausted,
    "billing_hard_limit_reached": QuotaExhausted,
    "billing_not_active": QuotaExhausted,
    "enforced_spend_limit_reached": QuotaExhausted,
    "rate_limit_exceeded": RateLimitError,
    "rate_limit_error": RateLimitError,
    "overloaded_error": LLMOverloaded,
    "server_error": LLMOverloaded,
    "api_error": LLMOverloaded,
    "service_unavailable": LLMOverloaded,
    "timeout_error": LLMTimeout,
    "authentication_error": LLMAuthenticationError,
    "invalid_api_key": LLMAuthenticationError,
    "permission_error": LLMPermissionError,
    "unsupported_country_region_territory": LLMPermissionError,
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,
    "request_too_large": RequestTooLarge,
    "model_not_found": ModelNotFound,
}
_BY_STATUS: dict[int, type[LLMError]] = {
    400: LLMBadRequest,
    401: LLMAuthenticationError,
    402: QuotaExhausted,
    403: LLMPermissionError,
    404: ModelNotFound,
    408: LLMTimeout,
    409: LLMConflict,
    413: RequestTooLarge,
    422: LLMBadRequest,
    429: RateLimitError,
    504: LLMTimeout,
}
# The wires that have no code for it say it only in words; a wording unknown to us stays an LLMBadRequest, which is
# equally not retried.
_TOO_LONG = ("prompt is too long", "maximum context length", "longer than the context", "context size")


def provider_error(
    *,
    status: int | None,
    names: Iterable[object],
    message: object,
    headers: Mapping[str, str] | None = None,
    key: str = "",
    **details: object,
) -> LLMError:
    """A provider's error as one of ours: by its own codes first, then by the HTTP status.

    Args:
        status: HTTP status, or a code in its place; None when the error came inside a stream.
        names: the error's codes and types, the most exact first.
        message: the provider's words, or what stands in their place; kept short, for people.
        headers: of the answer, for the wait it asks for.
        key: the API key, which is taken out of the message.
        details: plain values for logs.
    """
    words = message if isinstance(message, str) else repr(message)
    cls = next((_BY_NAME[name] for name in names if isinstance(name, str) and name in _BY_NAME), None)
    if cls is None:
        cls = _by_status(status)
    if cls is LLMBadRequest and any(sign in words.lower() for sign in _TOO_LONG):
        cls = ContextTooLong
    said = redact(words, key)[:300]
    error = cls(status=status, message=said, **details)
    if headers is not None:
        error.retry_after_s = retry_after_s(headers, datetime.now(UTC))
        error.final = headers.get("x-should-retry", "").lower() == "false"
    return error


def _by_status(status: int | None) -> type[LLMError]:
    if status is None or status < 0:
        return LLMOverloaded
    return _BY_STATUS.get(status) or (LLMOverloaded if status >= 500 else LLMBadRequest)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """The wait a provider asks for: milliseconds, seconds or an HTTP date; None when it makes no sense.

    Args:
        headers: with lower-case lookup.
        now: aware UTC time, for the date form.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        try:
            wait = float(text) * unit
        except ValueError:
            continue
        return wait if math.isfinite(wait) and wait > 0 else None
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, TypeError, IndexError):
        return None
    wait = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    return wait if wait > 0 else None


def effort(thinking_tokens: int) -> str:
    """A reasoning budget in tokens as the effort that newer models take."""
    if thinking_tokens <= 2000:
        return "low"
    return "medium" if thinking_tokens < 8000 else "high"


def redact(text: str, key: str) -> str:
    """`text` without the key."""
    return text.replace(key, "***") if len(key) >= 4 else text


def cause_of(error: Exception, key: str) -> Exception | None:
    """The vendor's exception as a cause, unless its words hold the key."""
    return None if len(key) >= 4 and key in str(error) else error


def system_text(system: SystemPrompt) -> str:
    """The system layers as one text, for wires without cache marks."""
    if isinstance(system, str):
        return system
    return "\n\n".join(block.text for block in system if block.text.strip())


def system_blocks(system: SystemPrompt) -> list[SystemBlock]:
    """The system layers that say something."""
    blocks = [SystemBlock(system)] if isinstance(system, str) else list(system)
    return [block for block in blocks if block.text.strip()]


def history(request: ModelRequest) -> list[LLMMessage]:
    """The messages as every wire takes them: no assistant message that says and calls nothing, no blank user text."""
    kept = []
    for message in request.messages:
        if message.role == "assistant" and not message.tool_calls and not message.content.strip():
            continue
        if message.role == "user" and not message.content.strip():
            message = replace(message, content="(empty message)")
        kept.append(message)
    return kept


def reusable(message: LLMMessage, provider: str, model: str) -> list[dict[str, Any]]:
    """The message's own blocks, when this provider and model made them; else none."""
    blocks = message.blocks
    if blocks is None or blocks["provider"] != provider or blocks["model"] != model:
        return []
    return blocks["items"]


@contextmanager
def reading(model: str) -> Iterator[None]:
    """While a provider's answer is taken apart: what does not have the wire's shape is a `MalformedResponse`."""
    try:
        yield
    except (AttributeError, TypeError, KeyError, IndexError, ValueError, RecursionError) as exc:
        raise MalformedResponse(model=model, error=f"{type(exc).__name__}: {str(exc)[:120]}") from exc


def refuse_foreign(model: str, headers: Mapping[str, str]) -> None:
    """A stream without a single event in it: when it was a page, nothing was cut off (JSON counts as cut off).

    Args:
        headers: of the answer.

    Raises:
        MalformedResponse: the content type is neither that of an event stream nor JSON's.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "text/event-stream", "application/json"):
        raise MalformedResponse(model=model, error=f"{kind[:80]} in place of an event stream")


def text_of(value: object) -> str:
    """A text of the wire, or an empty one where there is none.

    Raises:
        TypeError: something else stands in its place.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of a text")
    return value


def counted(**counts: object) -> Usage:
    """The counts that are whole numbers; what is missing or foreign is unknown, not zero."""
    good = {name: value for name, value in counts.items() if isinstance(value, int) and not isinstance(value, bool)}
    return cast("Usage", {name: value for name, value in good.items() if value >= 0})


class ThinkingTags:
    """Takes a leading `<think>…</think>` out of a text that arrives in pieces (CAP-008).

    Only at the very start: a later tag belongs to the answer.
    """

    _OPEN = ("<think>", "<thinking>")
    _CLOSE = ("</think>", "</thinking>")

    def __init__(self) -> None:
        self._state = "start"
        self._held = ""

    def feed(self, piece: str) -> list[tuple[str, str]]:
        """The parts that are certain by now, as (`thinking` or `text`, words)."""
        if self._state == "text":
            return [("text", piece)] if piece else []
        self._held += piece
        out: list[tuple[str, str]] = []
        if self._state == "start":
            bare = self._held.lstrip()
            opened = next((tag for tag in self._OPEN if bare.lower().startswith(tag)), "")
            if opened:
                self._state, self._held = "thinking", bare[len(opened) :]
            elif any(tag.startswith(bare.lower()) for tag in self._OPEN):
                return out  # may still become a tag
            else:
                self._state = "text"
        if self._state == "thinking":
            closed = _first(self._held.lower(), self._CLOSE)
            if closed is None:
                keep = _partial_tag(self._held.lower(), self._CLOSE)
                ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
                return [("thinking", ready)] if ready else []
            at, length = closed
            if self._held[:at]:
                out.append(("thinking", self._held[:at]))
            self._state, self._held = "gap", self._held[at + length :]
        if self._state == "gap":
            self._held = self._held.lstrip()
            if not self._held:
                return out
            self._state = "text"
        held, self._held = self._held, ""
        return [*out, ("text", held)] if held else out

    def close(self) -> list[tuple[str, str]]:
        """What was held back when the text ended."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [("thinking" if self._state == "thinking" else "text", held)]


def _first(text: str, tags: tuple[str, ...]) -> tuple[int, int] | None:
    found = [(text.find(tag), len(tag)) for tag in tags if tag in text]
    return min(found) if found else None


def _partial_tag(text: str, tags: tuple[str, ...]) -> int:
    longest = max(len(tag) for tag in tags) - 1
    return next((n for n in range(min(longest, len(text)), 0, -1) if any(t.startswith(text[-n:]) for t in tags)), 0)
