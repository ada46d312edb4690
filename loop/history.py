"""The history of a request, from stored messages: windowed, repaired, the same bytes for the same rows (CAP-041).

Pure: no database, no clock. Whatever was killed, cut or edited, what comes out is valid for every provider:
a user message first, each call answered exactly once right behind it, in call order, no empty text, no repeated call
id, never an assistant message last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llm.arguments import KEPT_ID
from llm.tokens import CHARACTERS_A_TOKEN
from llm.types import LLMMessage, ToolCall

INTERRUPTED = '{"success":false,"result":null,"error":"interrupted: this call was cut off and has no result"}'
NO_RESULT_TEXT = "(empty result)"
NO_USER_TEXT = "(no text)"
GO_ON = "(continue)"
MESSAGE_OVERHEAD = 6  # tokens


@dataclass(frozen=True, slots=True)
class PastTurn:
    """The stored messages of one turn, in order; of a step, all of them.

    Args:
        key: the turn's key; call ids that must be made are made from it.
        messages: as rows give them; a tool result need not stand right behind its call.
    """

    key: int
    messages: tuple[LLMMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much of the history goes along.

    Args:
        turns: at most so many, the newest among them.
        tokens: of the history, estimated; the newest turn goes along whatever it takes.
        result_chars: what stays of an older turn's tool results once the tokens do not suffice.
    """

    turns: int = 40
    tokens: int = 60_000
    result_chars: int = 400


def estimate_tokens(message: LLMMessage) -> int:
    """What a message takes, estimated from its characters."""
    size = size_of(message.content) + sum(
        size_of(call["name"]) + size_of(json.dumps(call["arguments"], ensure_ascii=False))
        for call in message.tool_calls
    )
    return int(size / CHARACTERS_A_TOKEN) + MESSAGE_OVERHEAD


def size_of(text: str) -> int:
    """A text's characters, those of other scripts counted by their bytes: a Chinese character is nearly a token."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def build_history(
    turns: Sequence[PastTurn], *, window: Window | None = None, model: str = "", summary: str = ""
) -> tuple[LLMMessage, ...]:
    """The messages of a request.

    Args:
        turns: oldest first; the last one is being answered.
        window: how much goes along; None: all.
        model: the answering model; an earlier turn's provider blocks stay only where all of them are this model's.
            Empty: not checked.
        summary: stands in for condensed turns before the first one.

    Raises:
        ValueError: there is no message at all.

    Source: CAP-041.
    """
    if not any(turn.messages for turn in turns):
        raise ValueError("a request needs at least one message")
    repaired = _repair_all(turns)
    kept, cut = _windowed(repaired, window or Window(turns=len(repaired), tokens=2**62))
    kept = _without_stale_blocks(kept, cut=cut or bool(summary), model=model)
    messages = [message for turn in kept for message in turn.messages]
    if summary:
        messages.insert(0, LLMMessage("user", summary))
    merged = _merged(messages)
    if merged[0].role != "user":
        merged.insert(0, LLMMessage("user", GO_ON))
    if merged[-1].role == "assistant":
        merged.append(LLMMessage("user", GO_ON))
    return tuple(_marked(merged, start_of_newest=_newest_user(merged)))


def kept_turns(turns: Sequence[PastTurn], *, window: Window) -> list[int]:
    """The keys of the turns that go along; the newest is always the last."""
    kept, _cut = _windowed(_repair_all(turns), window)
    return [turn.key for turn in kept]


def _repair_all(turns: Sequence[PastTurn]) -> list[PastTurn]:
    used: set[str] = set()
    repaired = [PastTurn(turn.key, tuple(_repaired(turn, used))) for turn in turns]
    return [turn for turn in repaired if turn.messages]


def _repaired(turn: PastTurn, used: set[str]) -> list[LLMMessage]:
    """One turn's messages: every call answered once, in call order, right behind it; empty messages gone."""
    out: list[LLMMessage] = []
    messages = turn.messages
    for index, message in enumerate(messages):
        if message.role == "tool":
            continue  # taken up by the call it answers
        if message.role == "user":
            out.append(message if message.content.strip() else replace(message, content=NO_USER_TEXT))
        elif message.tool_calls:
            out.extend(_answered(message, _results(messages[index + 1 :]), place=f"{turn.key}_{index}", used=used))
        elif message.content.strip():
            out.append(replace(message, content=message.content.rstrip()) if message.blocks is None else message)
    return out


def _results(following: Sequence[LLMMessage]) -> dict[str, list[LLMMessage]]:
    """The results up to the next message that speaks, by call id as rows keep it; the first of an id is what counts."""
    found: dict[str, list[LLMMessage]] = {}
    for message in following:
        if message.role == "assistant":
            break
        if message.role == "tool":
            found.setdefault(message.tool_call_id[:KEPT_ID], []).append(message)
    return found


def _answered(
    message: LLMMessage, results: dict[str, list[LLMMessage]], *, place: str, used: set[str]
) -> list[LLMMessage]:
    calls: list[ToolCall] = []
    answers: list[LLMMessage] = []
    renamed = changed = False
    for position, call in enumerate(message.tool_calls, start=1):
        waiting = results.get(call["id"][:KEPT_ID])
        result = waiting.pop(0) if waiting else None
        call_id = call["id"]
        if not call_id or call_id in used:
            call_id, renamed = _free_id(f"call_{place}_{position}", used), True
        used.add(call_id)
        if call_id != call["id"] or not isinstance(call["arguments"], dict):
            call = ToolCall(**{**call, "id": call_id, "arguments": _object(call["arguments"])})
            changed = True
        calls.append(call)
        answers.append(_result(result, call))
    text = message.content if message.content.strip() else ""
    if changed or text != message.content:
        # The provider's own blocks carry its own ids: they go with the messages whose ids are unchanged.
        blocks = None if renamed else message.blocks
        message = replace(message, content=text, tool_calls=tuple(calls), blocks=blocks)
    return [message, *answers]


def _result(result: LLMMessage | None, call: ToolCall) -> LLMMessage:
    """The stored result under its call's id and name; an interrupted one where there is none."""
    if result is not None and result.tool_call_id == call["id"] and result.tool_name == call["name"]:
        if result.content.strip():
            return result
        return replace(result, content=NO_RESULT_TEXT)
    if result is None:
        return LLMMessage("tool", INTERRUPTED, tool_call_id=call["id"], tool_name=call["name"], is_error=True)
    content = result.content if result.content.strip() else NO_RESULT_TEXT
    return LLMMessage("tool", content, tool_call_id=call["id"], tool_name=call["name"], is_error=result.is_error)


def _object(arguments: object) -> dict[str, object]:
    return dict(arguments) if isinstance(arguments, dict) else {}


def _free_id(wanted: str, used: set[str]) -> str:
    free, number = wanted, 2
    while free in used:
        free, number = f"{wanted}_{number}", number + 1
    return free


def _windowed(turns: list[PastTurn], window: Window) -> tuple[list[PastTurn], bool]:
    """The newest turns that fit, cut at turn boundaries; tool results of older turns are shortened before turns go.

    Only what was there when the newest turn began counts: the cut stays where it is while that turn runs.
    """
    earlier, newest = turns[:-1], turns[-1]
    room = window.tokens - tokens_asked(newest)
    kept = earlier[max(len(earlier) - max(window.turns, 1) + 1, 0) :]
    cut = len(kept) < len(earlier)
    if _tokens(kept) > room:
        shortened = [_shortened(turn, window.result_chars) for turn in kept]
        cut = cut or shortened != kept
        kept = shortened
    while kept and _tokens(kept) > room:
        kept, cut = kept[1:], True
    return [*kept, newest], cut


def tokens_asked(turn: PastTurn) -> int:
    """What a turn's question takes, layer 4 with it: what was there when the turn began."""
    asked = next((i for i, m in enumerate(turn.messages) if m.role == "assistant"), len(turn.messages))
    return _tokens([PastTurn(turn.key, turn.messages[:asked])])


def _tokens(turns: Sequence[PastTurn]) -> int:
    return sum(estimate_tokens(message) for turn in turns for message in turn.messages)


def _shortened(turn: PastTurn, characters: int) -> PastTurn:
    return PastTurn(
        turn.key,
        tuple(
            replace(m, content=f"{m.content[:characters]}… ({len(m.content)} characters, shortened)")
            if m.role == "tool" and len(m.content) > characters + 60
            else m
            for m in turn.messages
        ),
    )


def _without_stale_blocks(turns: list[PastTurn], *, cut: bool, model: str) -> list[PastTurn]:
    """Provider blocks (thinking among them) of earlier turns: all of them, or none.

    They are valid only behind the very history they were made with, and for the model that made them. The turn being
    answered keeps its own: its window does not change while it runs.
    """
    earlier, newest = turns[:-1], turns[-1]
    made_by = {m.blocks["model"] for turn in earlier for m in turn.messages if m.blocks is not None}
    missing = any(
        m.role == "assistant" and m.tool_calls and m.blocks is None for turn in earlier for m in turn.messages
    )
    foreign = bool(model) and made_by - {model}
    if not made_by or not (cut or foreign or missing or len(made_by) > 1):
        return turns
    stripped = [PastTurn(t.key, tuple(replace(m, blocks=None) for m in t.messages)) for t in earlier]
    return [*stripped, newest]


def _merged(messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """Neighbours of the user become one message; between two of the assistant he asks to go on."""
    out: list[LLMMessage] = []
    for message in messages:
        last = out[-1] if out else None
        if last is not None and message.role == last.role == "user":
            out[-1] = replace(last, content=f"{last.content}\n\n{message.content}")
        elif last is not None and message.role == last.role == "assistant":
            # A reply that the provider paused: the request behind it asked to go on, and stays as it was sent.
            out += [LLMMessage("user", GO_ON), message]
        else:
            out.append(message)
    return out


def _newest_user(messages: Sequence[LLMMessage]) -> int:
    return max(index for index, message in enumerate(messages) if message.role == "user")


def _marked(messages: list[LLMMessage], *, start_of_newest: int) -> list[LLMMessage]:
    """The cache mark: on the last complete round of the turn, else on the last finished message before the question."""
    last = len(messages) - 1
    at = last if messages[last].role == "tool" else start_of_newest - 1
    return [replace(m, cache=True) if index == at else m for index, m in enumerate(messages)]
