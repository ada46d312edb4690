"""The one event-loop thread of a process, on which every adapter's async client runs.

A call that waits costs a task there and no thread of its own; cancelling it is `task.cancel()`, which closes the
provider's socket at once. A forked child starts a loop of its own at its first call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from llm.errors import LLMCancelled, LLMError, LLMTimeout
from llm.ports import CancelToken
from llm.types import End, LLMResponse, ModelEvent, TextDelta, ThinkingDelta, Usage, UsageDelta, Withdrawn

logger = logging.getLogger("llm")
T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_pid = 0
_exiting = False


def event_loop() -> asyncio.AbstractEventLoop:
    """This process's loop, started on first use."""
    global _loop, _pid, _thread
    loop = _loop
    if loop is not None and _pid == os.getpid():
        return loop
    with _lock:
        if _loop is None or _pid != os.getpid():
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            _thread = threading.Thread(target=_loop.run_forever, name="llm-loop", daemon=True)
            _thread.start()
        return _loop


def _forget_after_fork() -> None:
    global _lock, _loop, _thread
    _lock, _loop, _thread = threading.Lock(), None, None


def _stop_at_exit() -> None:
    """End what still runs: a thread that outlives the interpreter's own end may crash it."""
    global _exiting
    _exiting = True
    if _loop is None or _thread is None or _pid != os.getpid():
        return
    asyncio.run_coroutine_threadsafe(_cancel_all(), _loop).add_done_callback(lambda _done: _loop.stop())
    _thread.join(2.0)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=1.0) if tasks else None


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_stop_at_exit)


def run(work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
    """Run `work` on the loop and wait for it.

    Raises:
        LLMTimeout: after `timeout_s` seconds.
    """
    _refuse_own_thread()
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout_s), event_loop())
    try:
        return future.result()
    except TimeoutError as exc:
        raise LLMTimeout(seconds=timeout_s) from exc
    except BaseException:
        future.cancel()
        raise


class PerProcess(Generic[T]):
    """An async client of this process: a forked child makes its own; connections close when it is let go.

    Args:
        make: a new client with an async `close()`, or None for none.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._pid = 0
        self._closer: Callable[[], object] | None = None

    def get(self) -> T:
        """The client, made on first use."""
        if self._value is None or self._pid != os.getpid():
            self._value, self._pid = self._make(), os.getpid()
            self._closer = weakref.finalize(self, _close, self._value, self._pid)
        return self._value

    def close(self) -> None:
        """Close the connections that are kept; the next `get` makes a new client."""
        closer, self._value, self._closer = self._closer, None, None
        if closer is not None:
            closer()


def _close(client: Any, pid: int) -> None:
    """Close a client on the loop that its connections live on; a forked child leaves its parent's alone."""
    if client is not None and pid == os.getpid() and not _exiting:
        asyncio.run_coroutine_threadsafe(client.close(), event_loop())


class RunningCall:
    """One model call under way on the loop, and the queue its events come through.

    Args:
        events: makes the adapter's event stream.
        tidy: makes of each event those that are passed on.
        model: what a partial response says it came from.
        deadline_s: for the whole of it, seconds.
        cancel: ends it.
        forward: pass on each event; False: only the end.
    """

    def __init__(
        self,
        events: Callable[[], AsyncGenerator[ModelEvent, None]],
        *,
        tidy: Callable[[ModelEvent], Sequence[ModelEvent]],
        model: str,
        deadline_s: float,
        cancel: CancelToken | None,
        forward: bool,
    ) -> None:
        _refuse_own_thread()
        self._events = events
        self._tidy = tidy
        self._model = model
        self._deadline_s = deadline_s
        self._cancel_token = cancel
        self._forward = forward
        self._queue: SimpleQueue[ModelEvent | BaseException | None] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._usage: Usage = Usage()
        self._loop = event_loop()
        self._loop.call_soon_threadsafe(self._begin, contextvars.copy_context())
        self._forget_cancel = cancel.on_cancel(self.cancel) if cancel is not None else None

    def cancel(self) -> None:
        """End the call; safe from any thread, and more than once."""
        self._loop.call_soon_threadsafe(self._cancel_task)

    def results(self) -> Generator[ModelEvent, None, None]:
        """The events, the last of which is `End`; leaving early ends the call.

        Raises:
            LLMError: why there is no end.
        """
        finished = False
        try:
            while True:
                item = self._queue.get()
                if item is None:
                    finished = True
                    return
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                yield item
        finally:
            if self._forget_cancel is not None:
                self._forget_cancel()
            if not finished:
                self.cancel()

    # What follows runs on the loop.

    def _begin(self, context: contextvars.Context) -> None:
        self._task = self._loop.create_task(self._pump(), context=context)
        self._task.add_done_callback(self._finished)
        if self._cancelled:
            self._task.cancel()

    def _cancel_task(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _pump(self) -> None:
        tidy = self._tidy
        async with asyncio.timeout(self._deadline_s), aclosing(self._events()) as events:
            async for event in events:
                for tidied in tidy(event):
                    self._note(tidied)

    def _note(self, event: ModelEvent) -> None:
        """Keep what a partial response needs, and pass the event on."""
        if isinstance(event, TextDelta):
            self._text.append(event.text)
        elif isinstance(event, ThinkingDelta):
            self._thinking.append(event.text)
        elif isinstance(event, UsageDelta):
            self._usage = event.usage
        elif isinstance(event, Withdrawn):
            self._text.clear()
        elif isinstance(event, End):
            self._queue.put(event)
            return
        if self._forward:
            self._queue.put(event)

    def _finished(self, task: asyncio.Task[None]) -> None:
        error: BaseException | None = None
        if not task.cancelled():
            error = task.exception()
        if task.cancelled() or (error is not None and self._cancelled):
            reason = self._cancel_token.reason if self._cancel_token is not None else ""
            self._queue.put(LLMCancelled(reason=reason or "the caller went away", partial=self._partial()))
        elif isinstance(error, TimeoutError):
            self._fail(LLMTimeout(seconds=self._deadline_s), error)
        elif isinstance(error, LLMError):
            self._fail(error, None)
        elif error is not None:
            logger.error("an adapter failed unforeseen", exc_info=error)
            self._fail(LLMError(model=self._model, error=type(error).__name__), error)
        else:
            self._queue.put(None)

    def _fail(self, error: LLMError, cause: BaseException | None) -> None:
        if error.partial is None:
            error.partial = self._partial()
        if cause is not None:
            error.__cause__ = cause
        self._queue.put(error)

    def _partial(self) -> LLMResponse | None:
        if not (self._text or self._thinking or self._usage):
            return None
        return LLMResponse(
            content="".join(self._text), thinking="".join(self._thinking), model=self._model, usage=self._usage
        )


def _refuse_own_thread() -> None:
    if _thread is not None and threading.current_thread() is _thread:
        raise RuntimeError("a model call made on the adapters' own event loop would wait for itself")
