"""The loop thread: races of cancels and ends, failures of an adapter, the end of the process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from llm import runtime
from llm.adapters.base import AsyncAdapter
from llm.errors import LLMCancelled, LLMError, LLMTimeout
from llm.ports import CancelToken
from llm.testing import Gate, held, say
from llm.types import End, LLMMessage, LLMResponse, ModelRequest, TextDelta
from tests.llm.samples import adapter, settings

ASK = ModelRequest(messages=(LLMMessage("user", "q"),))


def chat(server, **changes):
    return adapter("openai_chat", server.base_url.removesuffix("/v1"), **changes)


def test_a_cancel_at_any_moment_ends_in_an_answer_or_a_cancel(openai_loopback):
    count = 150
    server = openai_loopback(*[say("some words to stream", delay_s=0.001) for _ in range(count)])
    llm, chance = chat(server), random.Random(11)

    def one(delay):
        cancel = CancelToken()
        timer = threading.Timer(delay, cancel.cancel, args=("stop",))
        timer.start()
        try:
            return llm.call(ASK, on_event=lambda _event: None, cancel=cancel).content
        except LLMCancelled as exc:
            return exc
        finally:
            timer.cancel()

    with ThreadPoolExecutor(10) as pool:
        ends = list(pool.map(one, [chance.random() * 0.03 for _ in range(count)], timeout=60))
    assert all(end == "some words to stream" or end.reason == "stop" for end in ends)


class Faulty(AsyncAdapter):
    """An adapter with a bug."""

    provider = "faulty"

    def make_client(self):
        return None

    async def model_ids(self):
        raise KeyError("bug")

    async def events(self, request, *, stream):
        yield TextDelta("half")
        raise KeyError("sk-secret-in-a-bug")


class Endless(Faulty):
    async def events(self, request, *, stream):
        yield End(LLMResponse("done"))
        yield TextDelta("and on")


def test_an_adapters_bug_is_an_llm_error_with_its_cause():
    with pytest.raises(LLMError) as caught:
        Faulty("m", settings("openai_chat", "http://x")).call(ASK)
    assert type(caught.value) is LLMError
    assert caught.value.details["error"] == "KeyError"
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.partial.content == "half"


def test_nothing_is_waited_for_after_the_end():
    assert Endless("m", settings("openai_chat", "http://x")).call(ASK).content == "done"


def test_a_call_on_the_loop_itself_is_refused():
    async def on_loop():
        return Faulty("m", settings("openai_chat", "http://x")).call(ASK)

    with pytest.raises(RuntimeError, match="own event loop"):
        runtime.run(on_loop(), timeout_s=5)


def test_a_probe_has_its_own_deadline(openai_loopback):
    import asyncio

    with pytest.raises(LLMTimeout):
        runtime.run(asyncio.sleep(30), timeout_s=0.05)


@pytest.mark.parametrize("how", ["waiting", "idle", "forked"])
def test_a_process_ends_at_once_whatever_the_loop_does(openai_loopback, how):
    gate = Gate()
    server = openai_loopback("first", held(gate, "never"))
    code = """
import contextlib, os, sys, threading
from llm.adapters import build
from llm.errors import LLMCancelled
from llm.settings import LLMSettings
from llm.types import LLMMessage
llm = build(LLMSettings.from_env(os.environ, False), "loopback")
ask = lambda: llm.complete([LLMMessage("user", "q")])
print(ask().content, flush=True)
def wait():
    with contextlib.suppress(LLMCancelled):
        ask()
if sys.argv[1] == "waiting":
    threading.Thread(target=wait, daemon=True).start()
    sys.stdin.readline()
if sys.argv[1] == "forked" and os.fork() == 0:
    sys.exit(0)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code, how],
        env={**os.environ, **server.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if how == "waiting":
        assert gate.reached.wait(30)
    out, err = child.communicate("go\n", timeout=30)
    assert (child.returncode, out, err) == (0, "first\n", "")
