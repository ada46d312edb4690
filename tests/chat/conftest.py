"""A conversation with a scripted agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from django.utils import timezone

from chat import services
from chat.models import Conversation, Turn
from chat.runner import run_turn
from factory.agents import create_agent
from factory.tiers import llm_settings
from llm.testing import ScriptedLLM
from prompt.types import Limits
from tests.support.runs import make_user, make_workspace
from tools.executor import ToolExecutor
from tools.registry import Registry
from workspaces.models import User, Workspace


@dataclass
class Chat:
    """One person's conversation, and the words that move it."""

    user: User
    workspace: Workspace
    conversation: Conversation
    llm: ScriptedLLM
    tools: Registry | None = None
    limits: Limits = field(default_factory=Limits)

    def agents(self, identity: str, *, mode: Any = "conversation", tier: Any = None) -> Any:
        """The product's agent; with `tools`, the same on these tools alone."""
        agent = create_agent(identity, llm=self.llm, mode=mode, tier=tier)
        if self.tools is None:
            return agent
        who = replace(agent.identity, allowed_tools=self.tools.names(), limits=self.limits)
        return replace(agent, identity=who, executor=ToolExecutor(self.tools, who, mode=mode))

    def send(self, text: str, **options: Any) -> Turn:
        return services.send_message(
            conversation_id=self.conversation.pk,
            author=self.user,
            text=text,
            respond_async=options.pop("respond_async", False),
            correlation_id=options.pop("correlation_id", "corr-1"),
            now=timezone.now(),
            **options,
        )

    def run(self, turn: Turn, **options: Any) -> Turn:
        return run_turn(turn.pk, agents=self.agents, clock=timezone.now, **options)

    def say(self, text: str, **options: Any) -> Turn:
        return self.run(self.send(text, **options))


@pytest.fixture
def chat(transactional_db: None) -> Callable[..., Chat]:
    def make(*answers: Any, tools: Registry | None = None, limits: Limits | None = None, **columns: Any) -> Chat:
        user = make_user(is_superuser=True)
        workspace = make_workspace(user)
        conversation = services.create_conversation(user=user, workspace=workspace, now=timezone.now(), **columns)
        return Chat(user, workspace, conversation, ScriptedLLM(answers), tools, limits or Limits())

    return make


@pytest.fixture
def stand_in(settings: Any) -> Iterator[None]:
    """Pages ask which model is connected; the stand-in is one for DEBUG alone."""
    settings.DEBUG = True
    llm_settings.cache_clear()
    yield
    llm_settings.cache_clear()
