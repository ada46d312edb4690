"""What `loop` asks of the environment."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Setting `CAPSTAN_LOOP`, by these names.

    Args:
        window_turns: how many turns a request holds at most, the newest always among them.
        window_tokens: how many tokens of history a request holds at most, estimated.
        result_chars: how much of an older turn's tool result stays once the history is over its tokens, characters.
        final_answer_s: how long the forced final answer may take once the wall clock is over, seconds.
        max_wait_s: a longer wait that a provider asks for is not slept but becomes `not_before`, seconds.
    """

    window_turns: int = 40
    window_tokens: int = 60_000
    result_chars: int = 400
    final_answer_s: float = 30.0
    max_wait_s: float = 5.0


def loop_settings() -> LoopSettings:
    return LoopSettings(**getattr(settings, "CAPSTAN_LOOP", {}))
