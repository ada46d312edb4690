"""One TLS context a process: making one reads all certificates and takes 25 ms, for each client anew."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from functools import lru_cache


def shared_tls(make: Callable[..., ssl.SSLContext]) -> ssl.SSLContext:
    """The process's context.

    Args:
        make: the HTTP library's `create_ssl_context`.
    """
    return _made(make, os.getpid())


@lru_cache(maxsize=4)
def _made(make: Callable[..., ssl.SSLContext], _pid: int) -> ssl.SSLContext:
    return make(trust_env=False)
