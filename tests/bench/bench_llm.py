"""What the model port adds to the SDK's own time: `pytest tests/bench/bench_llm.py -o python_functions="bench_*"`.

The provider is a transport in this process that answers from memory, so neither network nor a server is measured. Each
figure of ours has its raw counterpart in the same run; the budgets are their differences: 150 µs a call, 20 µs a delta.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import httpx2
import openai
import pytest

from llm import runtime
from llm.adapters.openai_chat import OpenAIChatLLM
from llm.retry import RetryingLLM
from llm.settings import LLMSettings
from llm.structured import extract
from llm.tokens import estimate_tokens
from llm.types import LLMMessage, ModelRequest

DELTAS = 400
SETTINGS = LLMSettings(
    provider="openai", tiers=(), base_url="http://memory/v1", api_key="sk-bench", timeout_s=60, read_timeout_s=60
)
REQUEST = ModelRequest(messages=(LLMMessage("user", "hello"),), max_tokens=100)
HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 400, "total_tokens": 409}
WHOLE = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()


def _sse(value):
    return b"data: " + json.dumps(value).encode() + b"\n\n"


STREAM = b"".join(
    [
        *(_sse({**HEAD, "choices": [{"index": 0, "delta": {"content": "word "}}]}) for _ in range(DELTAS)),
        _sse({**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        _sse({**HEAD, "choices": [], "usage": USAGE}),
        b"data: [DONE]\n\n",
    ]
)


class Memory(httpx2.AsyncBaseTransport):
    """Answers from memory."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        streamed = json.loads(request.content).get("stream")
        kind = "text/event-stream" if streamed else "application/json"
        return httpx2.Response(200, headers={"content-type": kind}, content=STREAM if streamed else WHOLE)


class InMemory(OpenAIChatLLM):
    def make_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key="sk-bench",
            base_url="http://memory/v1",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=Memory()),
        )


@pytest.fixture
def llm():
    adapter = InMemory("m", SETTINGS)
    yield adapter
    adapter.close()


def on_loop(work):
    return asyncio.run_coroutine_threadsafe(work, runtime.event_loop()).result()


@pytest.mark.benchmark(group="call")
def bench_call_raw_sdk(benchmark, llm):
    payload = llm.payload(REQUEST, stream=False)

    async def many():
        for _ in range(50):
            await llm.client.chat.completions.create(**payload)

    benchmark.pedantic(lambda: on_loop(many()), rounds=20, warmup_rounds=2)
    benchmark.extra_info["calls_a_round"] = 50


@pytest.mark.benchmark(group="call")
def bench_call_port(benchmark, llm):
    def many():
        for _ in range(50):
            llm.call(REQUEST)

    benchmark.pedantic(many, rounds=20, warmup_rounds=2)
    benchmark.extra_info["calls_a_round"] = 50


@pytest.mark.benchmark(group="call")
def bench_call_port_with_retry(benchmark, llm):
    retrying = RetryingLLM(llm)

    def many():
        for _ in range(50):
            retrying.call(REQUEST)

    benchmark.pedantic(many, rounds=20, warmup_rounds=2)
    benchmark.extra_info["calls_a_round"] = 50


@pytest.mark.benchmark(group=f"stream of {DELTAS} deltas")
def bench_stream_raw_sdk(benchmark, llm):
    payload = llm.payload(REQUEST, stream=True)

    async def one():
        text = []
        async for chunk in await llm.client.chat.completions.create(**payload):
            text.extend(choice.delta.content for choice in chunk.choices)
        return text

    benchmark.pedantic(lambda: on_loop(one()), rounds=20, warmup_rounds=2)


@pytest.mark.benchmark(group=f"stream of {DELTAS} deltas")
def bench_stream_port(benchmark, llm):
    def one():
        events = []
        llm.call(REQUEST, on_event=events.append)
        return events

    benchmark.pedantic(one, rounds=20, warmup_rounds=2)


@pytest.mark.benchmark(group="text")
def bench_extract_fenced_100_kb(benchmark):
    text = "Here it is:\n```json\n" + json.dumps([{"key": f"k{n}", "verdict": "keep"} for n in range(2500)]) + "\n```"
    benchmark(extract, text, {"type": "array"})


@pytest.mark.benchmark(group="text")
def bench_estimate_tokens_100_kb(benchmark):
    benchmark(estimate_tokens, "some words of a prompt, and code(x) -> y\n" * 2500)


@pytest.mark.benchmark(group="import")
def bench_import_llm(benchmark):
    code = (
        "import time; t = time.perf_counter();"
        "import llm, llm.types, llm.ports, llm.retry, llm.settings, llm.structured, llm.adapters;"
        "print((time.perf_counter() - t) * 1000)"
    )

    def once():
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    benchmark.extra_info["ms_inside"] = benchmark.pedantic(once, rounds=5)
