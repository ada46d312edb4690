"""Whether the model answers, told apart from the rest of the product's health."""

from __future__ import annotations

import threading
import time
from typing import Any

from factory.tiers import llm_settings
from llm.adapters import build
from llm.errors import LLMError
from workspaces.errors import ConfigurationError

FRESH_S = 15.0
PROBE_S = 3.0

_lock = threading.Lock()
_last: tuple[float, dict[str, Any]] | None = None


def llm_status() -> dict[str, Any]:
    """`{status: ok | down | demo, provider, …}`, asked anew at most every 15 s.

    `demo` says that no model is connected. A provider that lists no models is `ok` when its settings parse.
    """
    global _last
    with _lock:
        if _last is not None and time.monotonic() - _last[0] < FRESH_S:
            return _last[1]
        status = _probe()
        _last = (time.monotonic(), status)
        return status


def model_is_connected() -> bool:
    """False for the rule-based stand-in; pages say so on a banner."""
    return llm_settings().provider != "demo"


def _probe() -> dict[str, Any]:
    try:
        chosen = llm_settings()
    except ConfigurationError as exc:
        return {"status": "down", "error": exc.code, "setting": exc.details.get("setting")}
    if chosen.provider == "demo":
        return {"status": "demo", "provider": "demo", "detail": "no model is connected; LLM_PROVIDER=demo"}
    try:
        build(chosen, chosen.model("execution")).models(timeout_s=PROBE_S)
    except LLMError as exc:
        return {"status": "down", "provider": chosen.provider, "error": exc.code}
    return {"status": "ok", "provider": chosen.provider}
