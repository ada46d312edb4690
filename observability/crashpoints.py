"""Named crash points: places where a test may kill this process between two statements.

`CAPSTAN_CRASH_AT=<name>` kills the process with SIGKILL the first time it gets there, `<name>:3` the third time.
Without the variable a point costs one comparison.

| point | the process dies |
|---|---|
| `turn.message_stored` | after the user's message and its turn committed, before anybody runs it |
| `turn.claimed` | with a lease and nothing else |
| `turn.streaming` | while deltas of an answer arrive |
| `loop.answered` | after the model's last token, before anything of the round is stored |
| `loop.before_commit` | inside the round's unit, everything written, nothing committed |
| `loop.external_started` | after the commit that stored the calls, before the external call ran |
| `loop.external_ran` | after an external call, before its result is stored |
| `loop.round_committed` | between two rounds |
| `turn.answered` | after the commit that ended the turn, before the answer reached the client |
"""

from __future__ import annotations

import os
import signal
import threading

_wanted, _, _count = os.environ.get("CAPSTAN_CRASH_AT", "").partition(":")
_left = int(_count or 1)
_lock = threading.Lock()


def crash_point(name: str) -> None:
    """Die here when `CAPSTAN_CRASH_AT` says so."""
    global _left
    if name != _wanted:
        return
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
