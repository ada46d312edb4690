"""Exactly what the model gets for a turn, layer by layer, without asking it (CAP-020)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chat.models import Turn
from chat.transcript import ChatTranscript
from factory.agents import create_agent
from llm.base import ModelPort
from llm.ports import CancelToken
from llm.types import LLMMessage, LLMResponse, ModelRequest
from loop.history import CHARACTERS_A_TOKEN, estimate_tokens, size_of
from prompt.models import WorkflowTemplate
from tools.runs import RunRef

LAYERS = ("1 foundation", "2 identity", "3 recipe")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a request.

    Args:
        title: its layer, or its role in the history.
        tokens: estimated from its characters.
        cached: a cache mark stands behind it: the provider may keep everything up to here.
    """

    title: str
    text: str
    tokens: int
    cached: bool = False


class _Unasked(ModelPort):
    """Stands where no model is called."""

    provider = ""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def call(self, request: ModelRequest, **_options: Any) -> LLMResponse:
        raise AssertionError("a preview asks no model")

    def stream_request(self, request: ModelRequest, *, cancel: CancelToken | None = None) -> Iterator[str]:
        raise AssertionError("a preview asks no model")


def preview_of(turn: Turn) -> list[Part]:
    """The request that a model call of this turn would make now: tools, layers 1 to 3, history, layer 4 last.

    Raises:
        CapstanError: the turn's agent or recipe is gone.
    """
    agent = create_agent(turn.identity, llm=_Unasked(turn.model_used))
    recipe = WorkflowTemplate.objects.resolve(turn.recipe, turn.recipe_version) if turn.recipe else None
    run = RunRef(
        model=Turn,
        pk=turn.pk,
        fence=turn.fence,
        stream_id=turn.stream_id,
        workspace_id=turn.workspace_id,
        correlation_id=turn.correlation_id,
    )
    transcript = ChatTranscript(run=run, turn=turn, identity=agent.identity, model=agent.llm.model_id)
    tools = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in agent.executor.schemas())
    system = agent.chat_system(recipe)
    parts = [_part(f"tools ({len(agent.executor.schemas())})", tools)]
    parts += [
        _part(f"layer {LAYERS[min(index, 2)]}", block.text, cached=block.cache) for index, block in enumerate(system)
    ]
    return [*parts, *(_message(message) for message in transcript.messages())]


def _part(title: str, text: str, *, cached: bool = False) -> Part:
    return Part(title=title, text=text, tokens=int(size_of(text) / CHARACTERS_A_TOKEN) + 1, cached=cached)


def _message(message: LLMMessage) -> Part:
    calls = [f"→ {call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in message.tool_calls]
    title = f"tool result {message.tool_name}" if message.role == "tool" else message.role
    text = "\n".join([message.content, *calls] if message.content else calls)
    return Part(title=title, text=text, tokens=estimate_tokens(message), cached=message.cache)
