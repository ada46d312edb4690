"""Retry, as a wrapper on the port: what failed for a while is tried again, within limits (CAP-005, CAP-006)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from llm.base import ModelPort, OnEvent
from llm.errors import LLMCancelled, LLMError, LLMOverloaded, RateLimitError
from llm.limiter import Limiter, LocalLimiter
from llm.ports import BaseLLM, CancelToken
from llm.types import (
    LLMResponse,
    ModelEvent,
    ModelRequest,
    RateLimited,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Withdrawn,
)

Sleep = Callable[[float, CancelToken | None], None]
OnWait = Callable[[str, int, float], None]
_SHORTEST_S = 0.5  # of a deadline: less is not worth another attempt
LONGEST_SHARED_PAUSE_S = 60.0  # then somebody asks again: one call's long wait is not every tenant's


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and after how long.

    Args:
        max_attempts: the first included.
        base_s, cap_s: after a rate limit or an overload without a wait of the provider's: full jitter below
            min(base · 2^(n-1), cap), seconds.
        quick_base_s, quick_cap_s: the same after any other passing failure (a lost connection, a cut stream, a 500).
        max_sleep_s: a longer wait is not slept but raised as `RateLimitError(retry_after_s)`; 5 in turns and steps,
            None in commands: any wait is slept, up to `patience_s`.
        patience_s: the longest wait that is slept at all.
    """

    max_attempts: int = 5
    base_s: float = 30.0
    cap_s: float = 120.0
    quick_base_s: float = 1.0
    quick_cap_s: float = 15.0
    max_sleep_s: float | None = 5.0
    patience_s: float = 600.0

    @property
    def longest_sleep_s(self) -> float:
        return self.patience_s if self.max_sleep_s is None else min(self.max_sleep_s, self.patience_s)


def wait_for(error: LLMError, attempt: int, policy: RetryPolicy, *, draw: Callable[[], float] = random.random) -> float:
    """Seconds until the next attempt: what the provider asks for and a little more, else a draw below the back-off.

    Args:
        error: why attempt `attempt` (from 1) failed.
        draw: a number from 0 up to 1.
    """
    asked = error.retry_after_s
    if asked is not None:
        return asked + draw() * min(2.0, 0.25 * asked)
    if is_pressure(error):
        return draw() * min(policy.base_s * 2.0 ** (attempt - 1), policy.cap_s)
    return draw() * min(policy.quick_base_s * 2.0 ** (attempt - 1), policy.quick_cap_s)


def is_pressure(error: LLMError) -> bool:
    """Whether the provider is asking everybody to slow down."""
    if isinstance(error, RateLimitError):
        return True
    return isinstance(error, LLMOverloaded) and (
        error.details.get("status") in (503, 529) or error.retry_after_s is not None
    )


def sleep(seconds: float, cancel: CancelToken | None) -> None:
    """Wait, or return at once when the call is cancelled."""
    if cancel is None:
        time.sleep(seconds)
        return
    woken = threading.Event()
    forget = cancel.on_cancel(woken.set)
    woken.wait(seconds)
    forget()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listener:
    """Passes events on, and knows whether anything was said that a retry makes void."""

    on_event: OnEvent | None
    said: list[bool] = field(default_factory=list)

    def hear(self, event: ModelEvent) -> None:
        if isinstance(event, TextDelta | ThinkingDelta | ToolCallDelta):
            self.said.append(True)
        elif isinstance(event, Withdrawn):
            self.said.clear()
        assert self.on_event is not None
        self.on_event(event)

    def tell(self, event: ModelEvent) -> None:
        if self.on_event is not None:
            self.on_event(event)

    def withdraw(self, reason: str) -> None:
        if self.said:
            self.said.clear()
            self.tell(Withdrawn(reason))


class RetryingLLM(ModelPort):
    """A port that tries again.

    Args:
        inner: the port that is wrapped.
        policy: how often and after how long.
        limiter: shared by all who use the same key and model; a pause there holds back every call.
        on_wait: told (message, attempt, seconds) before each sleep, besides the `RateLimited` event (CAP-006).
        before_sleep: called before each sleep, to give back what must not be held meanwhile.
        pause: sleeps; returns early on a cancel.
        draw: a number from 0 up to 1, for the jitter.
        clock: seconds that only grow.

    Source: CAP-005, CAP-006.
    """

    def __init__(
        self,
        inner: BaseLLM,
        policy: RetryPolicy | None = None,
        limiter: Limiter | None = None,
        *,
        on_wait: OnWait | None = None,
        before_sleep: Callable[[], None] | None = None,
        pause: Sleep = sleep,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.policy = policy or RetryPolicy()
        self.limiter = limiter or LocalLimiter()
        self.model_id = inner.model_id
        self.provider = inner.provider
        self._on_wait = on_wait
        self._before_sleep = before_sleep
        self._pause = pause
        self._draw = draw
        self._clock = clock

    def __repr__(self) -> str:
        return f"RetryingLLM({self.inner!r})"

    def call(
        self, request: ModelRequest, *, on_event: OnEvent | None = None, cancel: CancelToken | None = None
    ) -> LLMResponse:
        """One answer, tried for as often as the policy says; a request's deadline covers all attempts and waits.

        Raises:
            RateLimitError: the next attempt lies too far ahead to sleep until it; `retry_after_s` says how far.
            LLMError: the last attempt's error, as it was.
        """
        listener = _Listener(on_event=on_event)
        hear = listener.hear if on_event is not None else None
        began = self._clock()
        attempt = 0
        while True:
            self._hold_back(listener, attempt + 1, cancel, request, began)
            attempt += 1
            left = _remaining(request, began, self._clock())
            try:
                return self.inner.call(replace(request, deadline_s=left), on_event=hear, cancel=cancel)
            except LLMError as error:
                delay = self._delay(error, attempt)
                if delay is None or not _time_for(request, began, self._clock(), delay):
                    raise
                if delay > self.policy.longest_sleep_s:
                    raise _put_off(error, delay) from error
                listener.withdraw(error.code)
                self._sleep(str(error), attempt, delay, listener, cancel, error.partial)

    def stream_request(self, request: ModelRequest, *, cancel: CancelToken | None = None) -> Iterator[str]:
        """The answer's text; tried again only while none of it was handed out, as text cannot be taken back here."""
        listener = _Listener(on_event=None)
        began = self._clock()
        attempt = 0
        while True:
            self._hold_back(listener, attempt + 1, cancel, request, began)
            attempt += 1
            said = False
            try:
                for piece in self._inner_stream(request, cancel):
                    said = True
                    yield piece
            except LLMError as error:
                delay = self._delay(error, attempt)
                if said or delay is None or not _time_for(request, began, self._clock(), delay):
                    raise
                if delay > self.policy.longest_sleep_s:
                    raise _put_off(error, delay) from error
                self._sleep(str(error), attempt, delay, listener, cancel, error.partial)
            else:
                return

    def models(self, *, timeout_s: float = 10.0) -> list[str] | None:
        """As the inner port's readiness probe."""
        probe: Callable[..., list[str] | None] = self.inner.models  # type: ignore[attr-defined]
        return probe(timeout_s=timeout_s)

    def _inner_stream(self, request: ModelRequest, cancel: CancelToken | None) -> Iterator[str]:
        inner = self.inner
        if isinstance(inner, ModelPort):
            return inner.stream_request(request, cancel=cancel)
        options = {
            name: getattr(request, name) for name in ModelRequest.__slots__ if name not in ("messages", "system")
        }
        return inner.stream(request.messages, request.system, cancel=cancel, **options)

    def _delay(self, error: LLMError, attempt: int) -> float | None:
        """How long to wait, or None for no further attempt; a provider under pressure pauses everybody for a while."""
        if not error.retryable or error.final:
            return None
        delay = wait_for(error, attempt, self.policy, draw=self._draw)
        if is_pressure(error):
            self.limiter.pause(min(delay, LONGEST_SHARED_PAUSE_S))
        return None if attempt >= self.policy.max_attempts else delay

    def _hold_back(
        self, listener: _Listener, attempt: int, cancel: CancelToken | None, request: ModelRequest, began: float
    ) -> None:
        """Let the limiter's pause pass; nobody calls before its end, and not all at its very end."""
        while (left := self.limiter.wait_s()) > 0:
            delay = left + self._draw() * min(1.0, 0.1 * left)
            if delay > self.policy.longest_sleep_s or not _time_for(request, began, self._clock(), delay):
                raise RateLimitError(retry_after_s=delay, model=self.model_id, message="the key's pause is not over")
            self._sleep("waiting for the provider's rate limit", attempt, delay, listener, cancel, None)

    def _sleep(
        self,
        message: str,
        attempt: int,
        delay: float,
        listener: _Listener,
        cancel: CancelToken | None,
        partial: LLMResponse | None,
    ) -> None:
        if self._on_wait is not None:
            self._on_wait(message, attempt, delay)
        listener.tell(RateLimited(message, attempt, delay))
        if self._before_sleep is not None:
            self._before_sleep()
        self._pause(delay, cancel)
        if cancel is not None and cancel.cancelled:
            raise LLMCancelled(reason=cancel.reason, partial=partial)


def _remaining(request: ModelRequest, began: float, now: float) -> float | None:
    return None if request.deadline_s is None else max(_SHORTEST_S, request.deadline_s - (now - began))


def _time_for(request: ModelRequest, began: float, now: float, delay: float) -> bool:
    """Whether another attempt still fits into the request's deadline."""
    return request.deadline_s is None or now - began + delay + _SHORTEST_S < request.deadline_s


def _put_off(error: LLMError, delay: float) -> RateLimitError:
    put_off = RateLimitError(retry_after_s=delay, cause=error.code, model=error.details.get("model"))
    put_off.partial = error.partial
    return put_off
