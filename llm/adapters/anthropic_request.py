"""A request as Anthropic's Messages wire wants it, and where its at most four cache marks go (CAP-010)."""

from __future__ import annotations

from typing import Any

from llm.adapters.wire import history, reusable, system_blocks
from llm.types import LLMMessage, ModelRequest, ToolCall

PROVIDER = "anthropic"
MAX_MARKS = 4
_MARK = {"type": "ephemeral"}
_UNMARKABLE = {"thinking", "redacted_thinking"}


def marked_system(request: ModelRequest) -> list[dict[str, Any]]:
    """The system layers as blocks, the marked ones among the last marked that fit."""
    blocks = system_blocks(request.system)
    marks = [index for index, block in enumerate(blocks) if block.cache]
    allowed = set(marks[-(MAX_MARKS - _message_marks(request)) :]) if _message_marks(request) < MAX_MARKS else set()
    return [
        {"type": "text", "text": block.text, **({"cache_control": _MARK} if index in allowed else {})}
        for index, block in enumerate(blocks)
    ]


def marked_tools(request: ModelRequest) -> list[dict[str, Any]]:
    """The tools, the last one marked when the system is and a mark is left."""
    tools: list[dict[str, Any]] = [
        {"name": t["name"], "description": t["description"], "input_schema": t["input_schema"]} for t in request.tools
    ]
    system = sum(block.cache for block in system_blocks(request.system))
    if system and system + _message_marks(request) < MAX_MARKS:
        tools[-1]["cache_control"] = _MARK
    return tools


def _message_marks(request: ModelRequest) -> int:
    return min(sum(message.cache for message in request.messages), MAX_MARKS - 1)


def conversation(request: ModelRequest, model_id: str) -> list[dict[str, Any]]:
    """The messages: all results of one message's calls in one user message, own blocks as they came."""
    out: list[dict[str, Any]] = []
    messages = history(request)
    marks = {id(m) for m in [m for m in messages if m.cache][-(MAX_MARKS - 1) :]}
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, model_id)
        if id(message) in marks:
            _mark_last(blocks)
        if role == "user" and out and out[-1]["role"] == "user":
            out[-1]["content"].extend(blocks)
        elif blocks:
            out.append({"role": role, "content": blocks})
    if out and out[-1]["role"] == "assistant" and out[-1]["content"][-1].get("type") == "text":
        last = out[-1]["content"][-1]
        out[-1]["content"][-1] = {**last, "text": last["text"].rstrip()}
    return out


def _blocks(message: LLMMessage, model_id: str) -> list[dict[str, Any]]:
    if message.role == "tool":
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        return [{**block, "is_error": True} if message.is_error else block]
    if message.role != "assistant":
        return [{"type": "text", "text": message.content}]
    own = _own(reusable(message, PROVIDER, model_id), message.tool_calls)
    if own:
        return own
    text = [{"type": "text", "text": message.content}] if message.content.strip() else []
    return text + [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}
        for call in message.tool_calls
    ]


def _own(items: list[dict[str, Any]], calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
    """The reply's own blocks, with our call ids where they differ; none when its calls are not the message's."""
    uses = [item for item in items if item.get("type") == "tool_use"]
    if [use.get("name") for use in uses] != [call["name"] for call in calls]:
        return []
    ids = iter(call["id"] for call in calls)
    kept = [{**item, "id": next(ids)} if item.get("type") == "tool_use" else dict(item) for item in items]
    return [item for item in kept if item.get("type") != "text" or item.get("text")]


def _mark_last(blocks: list[dict[str, Any]]) -> None:
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].get("type") not in _UNMARKABLE:
            blocks[index] = {**blocks[index], "cache_control": _MARK}
            return


def rounds_without_thinking(messages: list[dict[str, Any]]) -> bool:
    """Whether the open round of calls began without thinking, as after a model switch; older models then take none."""
    if len(messages) < 2 or not any(block.get("type") == "tool_result" for block in messages[-1]["content"]):
        return False
    first = messages[-2]["content"][0] if messages[-2]["content"] else {}
    return first.get("type") not in _UNMARKABLE
