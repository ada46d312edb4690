"""A conversation with a scripted agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.utils import timezone

from chat import services
from chat.models import Conversation, Turn
from chat.runner import run_turn
from factory.agents import create_agent
from llm.testing import ScriptedLLM
from tests.support.runs import make_user, make_workspace
from workspaces.models import User, Workspace


@dataclass
class Chat:
    """One person's conversation, and the words that move it."""

    user: User
    workspace: Workspace
    conversation: Conversation
    llm: ScriptedLLM

    def agents(self, identity: str, *, mode: Any = "conversation") -> Any:
        return create_agent(identity, llm=self.llm, mode=mode)

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
    def make(*answers: Any, **columns: Any) -> Chat:
        user = make_user(is_superuser=True)
        workspace = make_workspace(user)
        conversation = services.create_conversation(user=user, workspace=workspace, now=timezone.now(), **columns)
        return Chat(user, workspace, conversation, ScriptedLLM(answers))

    return make
