"""From the provider's delta to the client's screen: how long a word is under way, with fifty streams open.

    python bench/first_token.py [streams] [turns a stream] [pace, ms] [words a turn]      50 4 50 100

The real web process (uvicorn) and a worker process of 64 slots; the provider is a process on loopback that speaks the
chat-completions wire and writes a word every `pace` to each turn, the clients read their conversation's SSE stream over
HTTP. Each word is the moment at which it was written, by the clock that the clients read too. The clients begin at
random moments within a turn's length and ask again as soon as they are answered; their first turn warms up.

BENCH_TRACE=1 also listens on Redis and so splits the way: provider, worker and Redis, then web process and client.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bed import (
    HERE,
    QUIET,
    ROOT,
    Processes,
    databases,
    django_on,
    empty_redis,
    percentile,
    redis_url,
    say,
    scratch,
    stop_on_signals,
    table,
)

SLOTS = 64
READY = "the worker takes messages"
READY_S, TURN_S = 60.0, 60.0


class Client:
    """A person with a conversation open: its SSE stream, and the words that came."""

    def __init__(self, port: int, token: str, conversation: str) -> None:
        self.port, self.token, self.conversation = port, token, conversation
        self.first: list[float] = []
        self.all: list[float] = []

    def _head(self, method: str, path: str, more: str = "") -> bytes:
        host = f"Host: 127.0.0.1\r\nAuthorization: Token {self.token}\r\n"
        return f"{method} /api/conversations/{self.conversation}/{path}/ HTTP/1.1\r\n{host}{more}\r\n".encode()

    async def run(self, turns: int, *, delay_s: float, warm: Callable[[], None]) -> None:
        """Open the stream, then send `turns` messages, one after the other."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self._head("GET", "stream"))
        await self._until(reader, "caught_up", keep=False)
        await asyncio.sleep(delay_s)
        for turn in range(turns):
            if turn == 1:
                warm()
            async with asyncio.timeout(TURN_S):
                await self._send()
                await self._until(reader, "turn_ended", keep=turn > 0)
        writer.close()

    async def _send(self) -> None:
        body = json.dumps({"text": "Tell me something."}).encode()
        more = f"Prefer: respond-async\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self._head("POST", "messages", more + "Connection: close\r\n") + body)
        answer = await reader.read()
        writer.close()
        if b" 202 " not in answer[:20]:
            raise SystemExit(f"a message was refused: {answer[-500:]!r}")

    async def _until(self, reader: asyncio.StreamReader, last: str, *, keep: bool) -> None:
        """Read events up to `last`; each is one chunk, its lines `event:` and `data:`."""
        event, first = "", True
        while True:
            line = await reader.readline()
            now = time.monotonic()
            if not line:
                raise SystemExit("the stream broke")
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
            elif line.startswith(b"data: ") and event == "token":
                late = [(now - float(word)) * 1e3 for word in json.loads(line[6:])["text"].split()]
                if keep:
                    self.all += late
                    self.first += late[:1] if first else []
                first = first and not late
            elif line.startswith(b"data: ") and event == last:
                return


async def trace(channels: Sequence[str], found: list[float]) -> None:
    """Milliseconds from the provider to Redis, by a listener of our own."""
    import redis.asyncio as redis

    async with redis.Redis.from_url(redis_url(0)).pubsub() as listener:
        await listener.subscribe(*channels)
        async for message in listener.listen():
            now = time.monotonic()
            if message["type"] == "message" and b'"token"' in message["data"]:
                found += [(now - float(word)) * 1e3 for word in json.loads(message["data"])["text"].split()]


async def measure(
    clients: Sequence[Client], channels: Sequence[str], *, turns: int, turn_s: float, warm: Callable[[], None]
) -> list[float]:
    """Let all of them talk; what a trace found on Redis. `warm` is called once all have their first answer."""
    left = iter(range(len(clients) - 1, -1, -1))
    moment = random.Random(7)
    found: list[float] = []
    tracing = asyncio.create_task(trace(channels, found)) if os.environ.get("BENCH_TRACE") else None
    each_warm: Callable[[], None] = lambda: None if next(left) else warm()  # noqa: E731
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(turns, delay_s=moment.uniform(0, turn_s), warm=each_warm))
    if tracing is not None:
        tracing.cancel()
        await asyncio.wait([tracing])
        if not tracing.cancelled():
            tracing.result()
    return found


def conversations(count: int) -> tuple[str, list[str], list[str]]:
    """A user's token, and the keys and Redis channels of new conversations."""
    from django.utils import timezone
    from rest_framework.authtoken.models import Token

    from chat import services
    from events.models import channel_of
    from workspaces.models import User
    from workspaces.services import ensure_workspace

    user = User.objects.create_user("bench", is_superuser=True)
    workspace = ensure_workspace(slug="bench", name="bench", member=user)
    made = [services.create_conversation(user=user, workspace=workspace, now=timezone.now()) for _ in range(count)]
    channels = [channel_of(each.stream_id) for each in made]
    return Token.objects.create(user=user).key, [str(each.pk) for each in made], channels


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(port: int, running: Processes) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and running.alive():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0 and READY in running.last_lines():
                return
        time.sleep(0.05)
    raise SystemExit(f"web process or worker did not start\n{running.last_lines()}")


def main(arguments: Sequence[str]) -> None:
    stop_on_signals()
    streams, turns, pace, words = (int(each) for each in (*arguments, *("50", "4", "50", "100")[len(arguments) :]))
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        [url] = stack.enter_context(databases(""))
        stack.enter_context(django_on(url))
        empty_redis()
        token, keys, channels = conversations(streams)
        provider = subprocess.Popen(
            [sys.executable, str(HERE / "token_provider.py"), str(pace / 1e3), str(words)],
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(provider.wait)
        stack.callback(provider.kill)
        assert provider.stdout is not None
        port, base = free_port(), f"http://127.0.0.1:{provider.stdout.readline().strip()}/v1"
        env = {**os.environ, **QUIET, "OPENAI_BASE_URL": base, "DATABASE_POOL_SIZE": "20", "CAPSTAN_READY_LINE": READY}
        web = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1"]
        celery = [sys.executable, "-m", "celery", "-A", "config", "--quiet", "worker", "-Q", "turns", "-P", "threads"]
        alone = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR", "-n", "bench@%h"]
        commands = [[*web, "--port", str(port), "--log-level", "error"], [*celery, "-c", str(SLOTS), *alone]]
        running = stack.enter_context(Processes(commands, env=env, log=folder / "log", cwd=ROOT))
        wait_until_ready(port, running)
        clients = [Client(port, token, key) for key in keys]
        spent: list[tuple[float, float, float]] = []

        def look() -> None:
            spent.append((time.monotonic(), *running.cpu_of_each_s()))  # type: ignore[arg-type]  # there are two

        turn_s = words * pace / 1e3
        found = asyncio.run(measure(clients, channels, turns=turns, turn_s=turn_s, warm=look))
        look()
        took, *cpu = (b - a for a, b in zip(spent[0], spent[-1], strict=True))
    report(clients, found, cpu=[each / took for each in cpu], label=f"{streams} streams, a word every {pace} ms each")


def report(clients: Sequence[Client], found: Sequence[float], *, cpu: Sequence[float], label: str) -> None:
    """The table, and one JSON line."""
    series: dict[str, list[float]] = {
        "first word of a turn": [late for client in clients for late in client.first],
        "every word": [late for client in clients for late in client.all],
    }
    if found:
        series["of it: provider, worker, Redis"] = list(found)
    shares = (0.5, 0.95, 0.99, 1.0)
    lines = [
        [name, len(each), *(f"{percentile(each, s):.1f}" for s in shares)] for name, each in series.items() if each
    ]
    table([f"{label}: provider to client, ms", "words", "p50", "p95", "p99", "max"], lines)
    figures = {name: [round(percentile(each, s), 2) for s in shares] for name, each in series.items() if each}
    web, worker = (round(each, 2) for each in cpu)
    say(what=label, ms_p50_p95_p99_max=figures, cpus_busy={"web": web, "worker": worker}, load1=os.getloadavg()[0])


if __name__ == "__main__":
    main(sys.argv[1:])
