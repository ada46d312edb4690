"""PRF-SC02-01: JSON wrapped in thinking, as raw provider bodies carry it, becomes more than zero operations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.models import ChangeSet
from llm.testing.http import Exchange, HTTPLoopback
from tests.catalog.commands import extract_elements
from tests.catalog.trees import SHOP, write_tree
from tests.llm.samples import adapter
from tests.support.runs import make_workspace

pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]

DRAFT = 'Let me see. A first draft would be [{"key": "package:nothing", "verdict": "reject"}], but that is no good.'


def verdicts(shown: str) -> str:
    """A model's verdicts on the candidates it was shown, in a fence."""
    kept = [{"key": candidate["key"], "verdict": "keep"} for candidate in json.loads(shown)]
    return f"```json\n{json.dumps(kept, indent=1)}\n```"


def openai_chat(answer: str) -> dict[str, Any]:
    content = f"<think>\n{DRAFT}\n</think>\n\n{answer}"
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 90, "completion_tokens": 60, "total_tokens": 150}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def reasoning_left_open(answer: str) -> dict[str, Any]:
    body = openai_chat(answer)
    body["choices"][0]["message"]["content"] = f"{DRAFT}\n</think>\n{answer}"
    return body


def ollama(answer: str) -> dict[str, Any]:
    message = {"role": "assistant", "thinking": DRAFT, "content": f"Here you go:\n{answer}\nDone."}
    return {
        "model": "m",
        "message": message,
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 90,
        "eval_count": 60,
    }


def anthropic(answer: str) -> dict[str, Any]:
    content = [{"type": "thinking", "thinking": DRAFT, "signature": "sig"}, {"type": "text", "text": answer}]
    usage = {"input_tokens": 90, "output_tokens": 60}
    return {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content,
            "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}  # fmt: skip


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("openai_chat", openai_chat),
        ("openai_chat", reasoning_left_open),
        ("ollama", ollama),
        ("anthropic", anthropic),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_thinking_wrapped_json_gives_operations(
    tmp_path: Path, wire: str, body: Callable[[str], dict[str, Any]]
) -> None:
    async def serve(exchange: Exchange) -> None:
        said = exchange.request.body["messages"][-1]["content"]
        shown = said if isinstance(said, str) else said[-1]["text"]
        await exchange.answer_json(200, body(verdicts(shown)))

    workspace = make_workspace()
    write_tree(tmp_path, SHOP)
    with HTTPLoopback(serve) as server:
        ended = extract_elements(tmp_path, workspace, adapter(wire, server.url))  # type: ignore[arg-type]
        assert server.requests
    assert ended.code == 0, ended.error
    assert ChangeSet.objects.for_workspace(workspace).get().added > 0
