"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, *, poll_s: float = 0.02, what: str = "") -> T:
    """Ask `predicate` until its answer is true, and return that answer.

    Args:
        timeout: seconds, after which an AssertionError says `what` did not happen.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what or predicate}"
        time.sleep(poll_s)
    return answer
