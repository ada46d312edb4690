"""Shows the words of a run's open round to its readers, for turns and LLM steps alike (design § 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from blackboard.extract import VisibleText
from llm.types import End, ModelEvent, RateLimited, TextDelta, Withdrawn
from streaming.signals import LiveRound
from tools.registry import label_of


@dataclass(slots=True)
class LiveRun:
    """Hands a run's deltas to the stream, one `LiveRound` a round; fits the loop's `on_event`.

    Args:
        run: `turn:12` or `step:34`.
        fence: the owner's.
        resumed: another owner may have shown a part of the first round; it is withdrawn.
        board: the model's text may hold a board, which readers do not see (CAP-071).
    """

    stream_id: UUID
    run: str
    fence: int
    resumed: bool
    board: bool
    _open: LiveRound | None = None
    _visible: VisibleText = field(default_factory=VisibleText)

    def __call__(self, round_number: int, event: ModelEvent) -> None:
        """One model event of a round."""
        if self._open is None or self._open.round != round_number:
            self.close()  # its unit has committed: the loop asks again only then
            self._open = LiveRound(self.stream_id, run=self.run, round=round_number, fence=self.fence)
            self._visible = VisibleText()
            if self.resumed:
                self._open.restart()
                self.resumed = False
        match event:
            case TextDelta(text=text):
                self._open.append(self._visible.feed(text) if self.board else text)
            case Withdrawn():
                self._visible = VisibleText()
                self._open.restart()
            case RateLimited(message=message, attempt=attempt, delay_s=delay_s):
                self._open.waiting(message, attempt, delay_s)
            case End(response=response):
                self._open.append(self._visible.close())
                for position, call in enumerate(response.tool_calls or [], start=1):
                    self._open.tool(position, call["name"], label_of(call["name"]))
            case _:
                pass

    def close(self) -> None:
        """The open round has committed, or never will."""
        if self._open is not None:
            self._open.close()
            self._open = None
