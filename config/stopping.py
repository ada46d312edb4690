"""What a web process does as soon as it is told to stop: streams end, model calls are cancelled (design § 5.5).

The server itself waits for what is open, and would wait for both until its patience is over.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from streaming.sse import ASGIApp, Receive, Scope, Send

SIGNALS = (signal.SIGTERM, signal.SIGINT)
Call = Callable[[], object]


class StopsEarly:
    """Answers the server's lifespan, and hands everything else on.

    Args:
        inner: the application.
        calls: made in a thread of their own at the first SIGTERM or SIGINT.
    """

    def __init__(self, inner: ASGIApp, *calls: Call) -> None:
        self._inner, self._calls = inner, calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._inner(scope, receive, send)
            return
        while True:
            event = (await receive())["type"]
            if event == "lifespan.startup":  # the server has its own handlers in place by now
                on_stop(*self._calls)
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return


def on_stop(*calls: Call) -> None:
    """Make `calls` at the first SIGTERM or SIGINT; the handlers that were there go on as before.

    Outside the main thread, where Python takes no handlers, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    begun = threading.Event()

    def run() -> None:
        for call in calls:
            call()

    def chained(earlier: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
        def handle(received: int, frame: FrameType | None) -> None:
            if not begun.is_set():
                begun.set()
                # The handler runs between two bytecodes of any code, perhaps one that holds a lock that a call needs.
                threading.Thread(target=run, name="stopping", daemon=True).start()
            earlier(received, frame)

        return handle

    for number in SIGNALS:
        earlier = signal.getsignal(number)
        if callable(earlier):
            signal.signal(number, chained(earlier))
