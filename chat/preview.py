"""Exactly what the model gets for a turn, layer by layer, without asking it (CAP-020)."""

from __future__ import annotations

from chat.models import Message, Turn
from chat.transcript import ChatTranscript
from factory.agents import create_agent
from factory.executors import in_workspace
from factory.unasked import Unasked
from loop.preview import NO_REQUEST, Part, parts_of
from observability.queries import last_round_asked
from prompt.models import WorkflowTemplate
from tools.runs import RunRef

NOT_YET = Part(title="layer 4", text="It is made when the turn begins: snapshot, board, plans that ended.", tokens=0)


def preview_of(turn: Turn) -> list[Part]:
    """The turn's request: tools, layers 1 to 3, history, layer 4 last.

    Of a turn that has ended, the last request it made, whatever came of that; else the one that its next model call
    would make now.

    Raises:
        CapstanError: the turn's agent or recipe is gone, or its author is no member any more.
    """
    asked = last_round_asked("turn", turn.pk) if turn.ended else None
    if turn.ended and asked is None:
        return [NO_REQUEST]
    own = Message.objects.filter(turn=turn, role="assistant")
    model = own.exclude(blocks=None).order_by("-round").values_list("blocks__model", flat=True).first()
    agent = create_agent(turn.identity, llm=Unasked(model or ""))
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
    parts = parts_of(
        tools=in_workspace(agent.executor, turn.workspace_id).schemas(),
        system=agent.chat_system(recipe),
        messages=transcript.messages(before_round=asked),
    )
    return parts if turn.ended or transcript.has_dynamic() else [*parts, NOT_YET]
