"""Whatever people, providers and crashes do to a conversation, each of its requests is valid for every provider."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, note
from hypothesis import settings as examples
from hypothesis import strategies as st

from chat import services
from chat.models import Conversation, Turn
from chat.runner import run_turn
from llm.errors import LLMAuthenticationError
from llm.testing import ScriptedLLM, When, call, calls, cut, say
from llm.testing.replies import Reply
from llm.types import LLMMessage, ModelRequest
from prompt.types import Limits
from tests.chat.conftest import Chat
from tests.llm.samples import MODELS
from tests.loop.dialects import blocks_of, broken_rules
from tools.registry import Registry, tool
from workspaces.models import Workspace

EXAMPLES = max(int(os.environ.get("CAPSTAN_EXAMPLES", "150")) // 6, 20)
CASES = Path(__file__).parents[1] / "fixtures" / "cases"
WRITE = "capstan_workspaces.add_workspace"
MAKERS = ("anthropic", "openai_responses")


class Died(BaseException):
    """As close to SIGKILL as a thread gets: nothing behind it runs."""


@pytest.fixture(scope="module")
def tools() -> Registry:
    registry = Registry()

    @tool(effect="read", chat=True, registry=registry)
    def look(at: str = "") -> str:
        """Look."""
        return f"seen {at}" if at != "nothing" else ""

    @tool(effect="write", permission=WRITE, registry=registry)
    def make(at: str = "") -> str:
        """Make a workspace."""
        row = Workspace.objects.create(slug=f"made-{Workspace.objects.count()}", name=at)
        return row.slug

    @tool(effect="write", permission=WRITE, destructive=True, registry=registry)
    def burn() -> str:
        """Burn it."""
        return "burnt"

    @tool(effect="external", permission=WRITE, registry=registry)
    def ring() -> str:
        """Ring the bell; whoever does dies of it."""
        raise Died

    return registry


def dies(_request: ModelRequest) -> Reply:
    raise Died


ANSWERS: dict[str, Reply | Callable[[ModelRequest], Reply]] = {
    "plain": say("A plain answer."),
    "blank": say(" \n"),
    "trailing": say("An answer.  \n"),
    "refusal": say("I will not.", stop_reason="refusal"),
    "pause": say("First half,", stop_reason="pause"),
    "read": calls(call("look", at="x")),
    "pair": calls(call("look", at="a"), call("look", at="nothing"), text="I look."),
    "gone": calls(call("look"), call("no_such_tool"), text="\n\n"),
    "write": calls(call("look"), call("make"), call("look", at="b")),
    "waits": calls(call("look"), call("burn"), call("make")),
    "external": calls(call("make"), call("ring"), call("look")),
    "cut": cut("Half an ans", LLMAuthenticationError()),
    "dies": dies,
}


@dataclass
class Played:
    """One conversation and every request made in it, by turn."""

    it: Chat
    requests: dict[int, list[ModelRequest]] = field(default_factory=dict)

    def turns(self) -> list[Turn]:
        return list(Turn.objects.filter(conversation=self.it.conversation).order_by("pk"))

    def run(self, turn: Turn, script: Sequence[str], maker: str) -> None:
        """Run a turn to its end or to where it waits, dying on the way as the script says."""
        said = [self._made(ANSWERS[name], maker) for name in script]
        condensed = When(lambda request: not request.tools, "They spoke of this and that.", times=None)
        llm = ScriptedLLM([condensed, *said, "never"], model_id=MODELS[maker], provider=maker)
        self.it.llm = llm
        for _life in range(len(script) + 2):
            try:
                run_turn(turn.pk, agents=self.it.agents, clock=timezone.now)
            except Died:
                Turn.objects.filter(pk=turn.pk).update(lease_until=timezone.now() - timedelta(seconds=1), attempts=0)
                continue
            break
        self.requests.setdefault(turn.pk, []).extend(llm.requests)

    def _made(self, answer: Any, maker: str) -> Any:
        if not isinstance(answer, Reply) or answer.error is not None:
            return answer
        made = answer.response
        return replace(answer, response=replace(made, blocks=blocks_of(maker, made.content, made.tool_calls or [])))


moves = st.tuples(
    st.sampled_from(["say", "say", "say", "edit", "again", "show", "cancelled", "next_context"]),
    st.integers(0, 9),
    st.lists(st.sampled_from(sorted(ANSWERS)), min_size=1, max_size=4),
    st.sampled_from(MAKERS),
)


@pytest.mark.timeout(1_800)
@examples(
    max_examples=EXAMPLES,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking would run a database for minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(played=st.lists(moves, min_size=2, max_size=6), window=st.integers(2, 5), tokens=st.sampled_from([700, 60_000]))
def test_any_conversation_sends_valid_requests(chat, settings, tools, played, window, tokens):
    settings.CAPSTAN_LOOP = {"window_turns": window, "window_tokens": tokens, "result_chars": 20}
    talk = Played(chat("unused", tools=tools, limits=Limits(iterations=3)))
    it = talk.it
    for number, (move, pick, script, maker) in enumerate(played):
        turns, text = talk.turns(), f"Question {number}?"
        chosen = turns[pick % len(turns)] if turns else None
        if move == "show" and chosen is not None:
            services.select_branch(
                conversation_id=it.conversation.pk, user=it.user, turn_id=chosen.pk, correlation_id="c"
            )
            continue
        if move == "next_context":
            Conversation.objects.filter(pk=it.conversation.pk).update(context_id=str(pick % 2))
            continue
        if move == "again" and chosen is not None:
            turn = services.regenerate(
                turn_id=chosen.pk, author=it.user, respond_async=False, correlation_id="c", now=timezone.now()
            )
        elif move == "edit" and chosen is not None:
            turn = it.send(text, after_turn=chosen.after_id, supersede=True)
        else:
            turn = it.send(text, supersede=True)
        if move == "cancelled":
            services.cancel_turn(turn_id=turn.pk)
            continue
        talk.run(turn, [*script, "plain", "plain"], maker)
        turn.refresh_from_db()
        if not turn.ended:  # it waits for a person, who has lost interest
            services.cancel_turn(turn_id=turn.pk)
    for pk, requests in talk.requests.items():
        asked = Turn.objects.select_related("question").get(pk=pk).question
        assert asked is not None
        own = [request for request in requests if request.tools]
        for request in requests:
            note(f"turn {pk}: {[(m.role, m.content[:20]) for m in request.messages]}")
            assert broken_rules(request.messages) == {}
        before: tuple[LLMMessage, ...] = ()
        for request in own:
            assert any(asked.text in message.content for message in request.messages)
            sent = tuple(replace(message, cache=False) for message in request.messages)
            assert sent[: len(before)] == before, "what was sent is sent again as it was"
            before = sent if request.tool_choice != "none" else before
