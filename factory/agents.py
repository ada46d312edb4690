"""The composition root: the one place that wires model, tools, prompt and context into an agent (CAP-120)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from blackboard.types import INSTRUCTIONS as BOARD_INSTRUCTIONS
from context.services import SnapshotService
from factory.executors import in_workspace
from factory.identities import identity as named_identity
from factory.tiers import build_llm
from llm.ports import BaseLLM, CancelToken
from llm.types import ModelEvent, SystemBlock
from loop.ports import LoopOutcome, Transcript
from loop.react import bounded_react_loop
from prompt.builder import PromptBuilder
from prompt.models import WorkflowTemplate
from prompt.types import AgentIdentity, Mode, Tier
from tools.executor import ToolExecutor
from tools.registry import registry

OnEvent = Callable[[int, ModelEvent], None]


class ChatTranscript(Protocol):
    """What a chat turn's transcript can do besides the loop's part."""

    workspace_scope: str

    def set_dynamic(self, text: str, snapshot_version: int) -> None:
        """Store layer 4 with the user message, once."""
        ...

    def has_dynamic(self) -> bool: ...

    def extra_context(self) -> dict[str, Any]:
        """What else layer 4 holds: the board, and what became of the conversation's plans since the turn before."""
        ...

    def last_snapshot_version(self) -> int | None:
        """The version that the window's newest earlier message already holds."""
        ...


def plan_acknowledgement(plan_id: int) -> str:
    """What the turn that handed work over says, without a further model call (CAP-044)."""
    return f"I have put this into plan #{plan_id}. It runs in the background; each step shows here as it completes."


@dataclass(frozen=True, slots=True)
class PlannerAgent:
    """An agent with its model, its tools and its prompt; runs turns and LLM steps through the one loop.

    Args:
        tier: which tier `llm` is, for the record.
    """

    identity: AgentIdentity
    llm: BaseLLM
    executor: ToolExecutor
    mode: Mode
    tier: Tier
    snapshots: SnapshotService

    def handle_message(
        self,
        user_id: int,
        text: str,
        *,
        transcript: Any,
        cancel: CancelToken | None = None,
        on_event: OnEvent | None = None,
        deadline_s: float | None = None,
        recipe: WorkflowTemplate | None = None,
    ) -> LoopOutcome:
        """Answer one message of a person, or hand the work over to a plan.

        Args:
            user_id: the signed-in user, from the session; never from text.
            text: the message, already stored by the transcript's owner.
            transcript: the turn's rows.
            cancel: ends the model call at once.
            on_event: gets (round, model event) as they come.
            deadline_s: of the whole turn, seconds from now; None: the identity's limit.
            recipe: layer 3, when the turn runs under one.

        Raises:
            LLMError, LeaseLost: as `bounded_react_loop`.

        Source: CAP-037, CAP-040, CAP-044.
        """
        if not transcript.has_dynamic():
            built = self.snapshots.get_or_build(transcript.workspace_scope, user_id=user_id)
            prompt = PromptBuilder().with_identity(self.identity).with_context(**transcript.extra_context())
            if transcript.last_snapshot_version() == built["version"]:
                prompt = prompt.with_context(snapshot_version=built["version"])
            else:
                prompt = prompt.with_context(snapshot=built["snapshot"], snapshot_version=built["version"])
            transcript.set_dynamic(prompt.dynamic(), built["version"])
        return self._run(
            transcript,
            system=self.chat_system(recipe),
            cancel=cancel,
            on_event=on_event,
            seconds=deadline_s or self.identity.limits.turn_seconds,
            on_plan_created=plan_acknowledgement,
        )

    def run_step(
        self,
        *,
        transcript: Transcript,
        system_context: str = "",
        recipe: WorkflowTemplate | None = None,
        cancel: CancelToken | None = None,
        on_event: OnEvent | None = None,
        deadline_s: float | None = None,
        thinking_tokens: int = 0,
    ) -> LoopOutcome:
        """Run one LLM step of a plan; the outcome's text is its synthesis (CAP-054, CAP-060).

        Args:
            transcript: the step's journal; its first message says what to do.
            system_context: what is the same for every step of the plan, such as its goal.
            thinking_tokens: a reasoning budget for planning steps (CAP-007).

        Raises:
            LLMError, LeaseLost: as `bounded_react_loop`.
        """
        return self._run(
            transcript,
            system=self.step_system(recipe, system_context),
            cancel=cancel,
            on_event=on_event,
            seconds=deadline_s or self.identity.limits.step_seconds,
            thinking_tokens=thinking_tokens,
        )

    def chat_system(self, recipe: WorkflowTemplate | None = None) -> tuple[SystemBlock, ...]:
        """Layers 1 to 3 of a chat turn, as `handle_message` sends them."""
        return self._system(recipe, self._board())

    def step_system(self, recipe: WorkflowTemplate | None = None, system_context: str = "") -> tuple[SystemBlock, ...]:
        """Layers 1 to 3 of an LLM step, as `run_step` sends them."""
        return self._system(recipe, "\n\n".join(part for part in (system_context, self._board()) if part))

    def _board(self) -> str:
        return BOARD_INSTRUCTIONS if self.identity.blackboard else ""

    def _system(self, recipe: WorkflowTemplate | None, extra: str) -> tuple[SystemBlock, ...]:
        prompt = PromptBuilder().with_identity(self.identity)
        if recipe is not None:
            prompt = prompt.with_workflow(recipe)
        if extra:
            prompt = prompt.with_run(extra)
        return prompt.build()

    def _run(
        self,
        transcript: Any,
        *,
        system: tuple[SystemBlock, ...],
        cancel: CancelToken | None,
        on_event: OnEvent | None,
        seconds: float,
        thinking_tokens: int = 0,
        on_plan_created: Callable[[int], str] | None = None,
    ) -> LoopOutcome:
        return bounded_react_loop(
            llm=self.llm,
            executor=in_workspace(self.executor, transcript.owner.workspace_id),
            transcript=transcript,
            system=system,
            limits=self.identity.limits,
            tier=self.tier,
            max_output_tokens=self.identity.limits.max_output_tokens,
            thinking_tokens=thinking_tokens,
            on_event=on_event,
            cancel=cancel or CancelToken(),
            deadline=time.monotonic() + seconds,
            on_plan_created=on_plan_created,
        )


def create_agent(
    identity: AgentIdentity | str,
    *,
    llm: BaseLLM | None = None,
    mode: Mode = "conversation",
    tier: Tier | None = None,
) -> PlannerAgent:
    """Wire an agent.

    Args:
        identity: who it is, or its name.
        llm: the model; None builds the tier's. Tests hand in a ScriptedLLM.
        mode: which tools it is offered (CAP-039).
        tier: another tier than the identity's, as a planning step asks for (CAP-066).

    Raises:
        UnknownIdentity: no agent has that name.
        ConfigurationError: the environment names no usable model.

    Source: CAP-120.
    """
    who = named_identity(identity) if isinstance(identity, str) else identity
    wanted = tier or who.model_tier
    return PlannerAgent(
        identity=who,
        llm=llm or build_llm(tier=wanted),
        executor=ToolExecutor(registry(), who, mode=mode),
        mode=mode,
        tier=wanted,
        snapshots=SnapshotService(),
    )
