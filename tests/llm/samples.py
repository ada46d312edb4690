"""Serving the wire samples of `tests/fixtures/wire/` to the adapters."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm.adapters import adapter_class as make
from llm.settings import LLMSettings
from llm.testing.http import HTTPLoopback
from llm.types import LLMMessage, ModelRequest, ToolSchema

WIRE = Path(__file__).parent.parent / "fixtures" / "wire"
CASES = Path(__file__).parent.parent / "fixtures" / "cases"
MODELS = {
    "anthropic": "claude-opus-5-5",
    "openai_chat": "gpt-6-sol",
    "openai_responses": "gpt-6-sol",
    "ollama": "qwen3:4b",
}
PROVIDERS = {"anthropic": "anthropic", "openai_chat": "openai", "openai_responses": "openai", "ollama": "ollama"}
WEATHER = ToolSchema(
    name="get_weather",
    description="Weather of a city.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
ASK = ModelRequest(messages=(LLMMessage("user", "What is the capital of France?"),), tools=(WEATHER,), max_tokens=500)


def sample(name: str) -> dict[str, Any]:
    """One sample by `wire/case`."""
    return json.loads((WIRE / f"{name}.json").read_text(encoding="utf-8"))


def names(*, api: tuple[str, ...]) -> list[str]:
    """All samples of these APIs, as `wire/case`."""
    found = sorted(f"{path.parent.name}/{path.stem}" for path in WIRE.glob("*/*.json"))
    return [name for name in found if sample(name)["api"] in api]


def payload(case: dict[str, Any]) -> bytes:
    """The bytes of a sample's body."""
    if "sse" in case:
        return b"".join(_event(item) for item in case["sse"])
    if "ndjson" in case:
        return b"".join(json.dumps(line).encode() + b"\n" for line in case["ndjson"])
    if "text" in case:
        return case["text"].encode()
    return json.dumps(case["body"]).encode()


def _event(item: dict[str, Any]) -> bytes:
    data = item["data"] if isinstance(item["data"], str) else json.dumps(item["data"])
    head = f"event: {item['event']}\n" if item.get("event") else ""
    return f"{head}data: {data}\n\n".encode()


async def play(exchange, case: dict[str, Any]) -> None:
    """Answer a request with one sample."""
    if case["stream"]:
        await exchange.start(case["status"], case["headers"])
        await exchange.send(payload(case))
        await exchange.finish()
    else:
        await exchange.answer(case["status"], payload(case), case["headers"])


@contextmanager
def serving(*cases: dict[str, Any]):
    """A server that answers the cases in order, the last one again and again."""
    left = list(cases)

    async def answer(exchange):
        await play(exchange, left.pop(0) if len(left) > 1 else left[0])

    with HTTPLoopback(answer) as server:
        yield server


def settings(wire: str, url: str, **changes: Any) -> LLMSettings:
    """Settings for one wire against a loopback server."""
    base_url = f"{url}/v1" if wire.startswith("openai") else url
    tiers = tuple((tier, MODELS[wire]) for tier in ("planning", "execution", "field"))
    values = {"api_key": "sk-test-0123456789", "timeout_s": 20.0, "read_timeout_s": 10.0, **changes}
    return LLMSettings(provider=PROVIDERS[wire], tiers=tiers, base_url=base_url, **values)


def adapter(wire: str, url: str, **changes: Any):
    """A new adapter of one wire against a loopback server."""
    return make(wire)(MODELS[wire], settings(wire, url, **changes))
