"""The garbage collector while a process starts.

What a process loads until Django is set up stays until it ends, and looking for garbage among it takes a tenth of the
start. Entry points pause the collector meanwhile, and all of that is left out of its later rounds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collecting inside; what is there at the end is never looked at again."""
    pause()
    try:
        yield
    finally:
        resume()


def pause(**_said: object) -> None:
    """Begin; takes what a signal says."""
    gc.disable()


def resume(**_said: object) -> None:
    """End, whatever has happened."""
    gc.freeze()
    gc.enable()
