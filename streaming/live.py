"""The open round: text that the model is still writing, for readers alone (design § 7).

A delta costs its caller an append to a list. One thread a process sends what gathered, all rounds in one trip. The text
so far lies in Redis, capped and expiring, so that a reader who comes late gets it; it is never in a row.

Offsets count characters (Unicode code points) from the round's start.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from typing import Any, Final
from uuid import UUID

import redis

from events.models import channel_of
from streaming.connection import circuit, client

logger = logging.getLogger(__name__)

TEXT_CAP_BYTES: Final = 256 * 1024
EXPIRES_S: Final = 900  # longer than a step may take
GATHER_S: Final = 0.005
REPLACED: Final = -1

# A reply: the characters stored, or -1 when a newer owner or round has taken the place.
# `chars` lags behind `offset` after Redis lost its data; the writer then sends again from `chars` on.
_WRITE: Final = """
local op, run, round, fence = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, message, expires, cap = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local kept = redis.call('HMGET', KEYS[2], 'fence', 'round', 'closed')
local last_fence, last_round = tonumber(kept[1] or '-1'), tonumber(kept[2] or '-1')
if last_fence > fence or (last_fence == fence and (last_round > round or (last_round == round and kept[3]))) then
  return -1
end
if last_fence < fence or last_round < round or op == 'restart' then
  redis.call('DEL', KEYS[2], KEYS[3])
  redis.call('HSET', KEYS[2], 'fence', fence, 'round', round, 'chars', 0)
end
local chars = tonumber(redis.call('HGET', KEYS[2], 'chars'))
if op == 'text' then
  local offset, text, count = tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11])
  if chars ~= offset then return chars end
  if redis.call('HEXISTS', KEYS[2], 'full') == 0 then
    if redis.call('STRLEN', KEYS[3]) + #text <= cap then
      redis.call('APPEND', KEYS[3], text)
    else
      redis.call('HSET', KEYS[2], 'full', 1)
    end
  end
  chars = offset + count
  redis.call('HSET', KEYS[2], 'chars', chars)
  redis.call('HDEL', KEYS[2], 'wait', 'wait_until')
elseif op == 'wait' then
  redis.call('HSET', KEYS[2], 'wait', message, 'wait_until', ARGV[9])
elseif op == 'tool' then
  redis.call('HSET', KEYS[2], 'tool:' .. ARGV[9], message)
elseif op == 'close' then
  redis.call('HSET', KEYS[2], 'closed', 1)
  redis.call('DEL', KEYS[3])
end
redis.call('SADD', KEYS[1], run)
redis.call('EXPIRE', KEYS[1], expires)
redis.call('EXPIRE', KEYS[2], expires)
redis.call('EXPIRE', KEYS[3], expires)
if message ~= '' then redis.call('PUBLISH', channel, message) end
return chars
"""

READ: Final = """
local open = {}
for _, run in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local meta = redis.call('HGETALL', KEYS[1] .. ':' .. run)
  if #meta > 0 then
    table.insert(open, {run, meta, redis.call('GET', KEYS[1] .. ':' .. run .. ':text') or ''})
  else
    redis.call('SREM', KEYS[1], run)
  end
end
return open
"""


def key_of(stream_id: UUID) -> str:
    """The Redis key of a stream's open runs; the braces keep its keys on one node of a cluster."""
    return f"agent:live:{{{stream_id}}}"


class LiveRound:
    """One round while its model call runs. None of its methods waits or raises, whatever Redis does.

    Args:
        stream_id: where its readers listen.
        run: `turn:12` or `step:34`.
        round: the round's number within the run.
        fence: the owner's; readers drop what a lower fence sends.

    Source: CAP-100.
    """

    def __init__(self, stream_id: UUID, *, run: str, round: int, fence: int) -> None:  # noqa: A002  # a round is a round
        self.stream_id, self.run, self.round, self.fence = stream_id, run, round, fence
        self._lock = threading.Lock()
        self._pieces: list[str] = []
        self._first_unsent = 0
        self._sent = 0
        self._tools: list[dict[str, Any]] = []
        self._tools_sent = 0
        self._waiting: tuple[str, int, float] | None = None
        self._restart = False
        self._closing = False
        self._dead = False

    def append(self, text: str) -> None:
        """The model wrote `text`."""
        if text and not self._dead:
            with self._lock:
                self._pieces.append(text)
                self._waiting = None
            _flusher.submit(self)

    def tool(self, position: int, tool: str, label: str) -> None:
        """The call at `position` starts; its durable rows follow with the unit."""
        with self._lock:
            self._tools.append({"position": position, "tool": tool, "label": label})
        _flusher.submit(self)

    def waiting(self, message: str, attempt: int, delay_s: float) -> None:
        """The provider is not asked for a while; the next text ends the wait (CAP-006).

        Args:
            message: why.
            attempt: how many attempts there were.
            delay_s: seconds from now.
        """
        with self._lock:
            self._waiting = (message, attempt, time.time() + delay_s)
        _flusher.submit(self)

    def restart(self) -> None:
        """What was shown of this round is withdrawn: another owner, or another try, begins it anew."""
        with self._lock:
            self._pieces, self._first_unsent, self._sent = [], 0, 0
            self._tools, self._tools_sent = [], 0
            self._waiting = None
            self._restart = True
        _flusher.submit(self)

    def close(self) -> None:
        """The round's unit has committed, or never will. Call it after the commit: readers then have the row."""
        with self._lock:
            self._closing = True
        _flusher.submit(self)

    def _commands(self) -> list[list[str | int]]:
        """What is to be sent now, as arguments of the script. The caller holds the lock."""
        commands: list[list[str | int]] = []
        if self._restart:
            commands.append(["restart", *self._envelope("round_restarted")])
        if self._waiting is not None:
            message, attempt, until = self._waiting
            left = round(max(0.0, until - time.time()), 1)
            commands.append(
                ["wait", *self._envelope("rate_limit", message=message, attempt=attempt, delay_s=left), str(until)]
            )
        unsent = "".join(self._pieces[self._first_unsent :]).encode("utf-8", "replace").decode()
        if unsent:
            envelope = self._envelope("token", offset=self._sent, text=unsent)
            commands.append(["text", *envelope, self._sent, unsent, len(unsent)])
        unsent_tools = self._tools[self._tools_sent :]
        commands.extend(["tool", *self._envelope("tool_start", **tool), tool["position"]] for tool in unsent_tools)
        if self._closing:
            commands.append(["close", *self._envelope("")])
        return commands

    def _envelope(self, event: str, **payload: Any) -> list[str | int]:
        body = {"event": event, "run": self.run, "round": self.round, "fence": self.fence, **payload}
        message = json.dumps(body) if event else ""
        return [self.run, self.round, self.fence, channel_of(self.stream_id), message, EXPIRES_S, TEXT_CAP_BYTES]

    def _heal(self, stored: int) -> None:
        """Redis has less than was sent: send the rest again. The caller holds the lock."""
        text = "".join(self._pieces)
        self._pieces = [text[:stored], text[stored:]]
        self._first_unsent, self._sent, self._tools_sent = 1, stored, 0


class _Flusher:
    """The one thread of this process that sends open rounds. It starts with the first delta."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._dirty: dict[LiveRound, None] = {}
        self._busy = False
        self._thread: threading.Thread | None = None

    def submit(self, live: LiveRound) -> None:
        with self._changed:
            self._dirty[live] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live-rounds", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._dirty and not self._busy, timeout_s)

    def _run(self) -> None:
        last = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._dirty))
            # The first delta goes at once; what comes right after it goes together.
            time.sleep(circuit.wait_s() or max(0.0, last + GATHER_S - time.monotonic()))
            last = time.monotonic()
            with self._changed:
                rounds, self._dirty, self._busy = list(self._dirty), {}, True
            again: list[LiveRound] = []
            try:
                again = self._send(rounds)
            except (redis.RedisError, OSError) as exc:
                circuit.failed(exc)
                again = [live for live in rounds if not live._closing]  # a closed round's rows say it all
            except Exception:
                logger.exception("live text was dropped")
            with self._changed:
                self._busy = False
                for live in again:
                    self._dirty[live] = None
                self._changed.notify_all()

    def _send(self, rounds: list[LiveRound]) -> list[LiveRound]:
        """Send all in one trip; the rounds that have more to send."""
        pipeline = client().pipeline(transaction=False)
        sent: list[tuple[LiveRound, list[list[str | int]], list[str], int, int, object]] = []
        for live in rounds:
            with live._lock:
                commands = [] if live._dead else live._commands()
                sent.append((live, commands, live._pieces, len(live._pieces), len(live._tools), live._waiting))
            key = key_of(live.stream_id)
            for command in commands:
                pipeline.eval(_WRITE, 3, key, f"{key}:{live.run}", f"{key}:{live.run}:text", *command)
        replies = iter(pipeline.execute() if len(pipeline) else [])
        circuit.worked()
        again = []
        for live, commands, pieces, pieces_sent, tools_sent, waiting_sent in sent:
            stored = [int(next(replies)) for _ in commands]
            with live._lock:
                if REPLACED in stored or (commands and commands[-1][0] == "close"):
                    live._dead, live._pieces = True, []
                elif live._pieces is not pieces:  # restarted meanwhile: nothing of what was sent counts
                    again.append(live)
                else:
                    if live._waiting is waiting_sent:
                        live._waiting = None
                    self._acknowledge(live, commands, stored, pieces_sent, tools_sent)
                    if live._commands():
                        again.append(live)
        return again

    @staticmethod
    def _acknowledge(
        live: LiveRound, commands: list[list[str | int]], stored: list[int], pieces_sent: int, tools_sent: int
    ) -> None:
        live._restart, live._tools_sent = False, tools_sent
        for command, chars in zip(commands, stored, strict=True):
            if command[0] == "text":
                if chars == live._sent + int(command[-1]):
                    live._first_unsent, live._sent = pieces_sent, chars
                else:
                    live._heal(chars)


_flusher = _Flusher()


def drain(timeout_s: float = 2.0) -> bool:
    """Wait until what was handed in has been sent or given up; whether that happened in time."""
    return _flusher.drain(timeout_s)


def _after_fork() -> None:
    global _flusher  # a child has no threads of its parent
    _flusher = _Flusher()


os.register_at_fork(after_in_child=_after_fork)
