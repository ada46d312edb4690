"""Frozen values that cross the model port, the same for every provider (CAP-001, CAP-002)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

Role = Literal["system", "user", "assistant", "tool"]
StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "context_full", "pause"]
ToolChoice = Literal["auto", "none", "required"]


class ToolCall(TypedDict):
    """One call a model made; `arguments` is always an object, never raw text.

    `arguments_error` is there only when the model wrote arguments that are no JSON object: `arguments` is then empty,
    and the call must not be run: its answer is an error result with this text, so that the model can try again.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    arguments_error: NotRequired[str]


class ToolSchema(TypedDict):
    """The canonical schema; adapters translate it to their dialect (CAP-034)."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Usage(TypedDict, total=False):
    """Tokens of one call. An absent key is unknown, not zero.

    `input_tokens` is the whole prompt, its cached parts included; `output_tokens` includes `reasoning_tokens`.
    """

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int


class ProviderBlocks(TypedDict):
    """A reply's own blocks, byte for byte, for replay to the same provider and model."""

    provider: str
    model: str
    items: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SystemBlock:
    """One system layer; `cache` puts a cache mark behind it (CAP-010)."""

    text: str
    cache: bool = False


SystemPrompt = str | Sequence[SystemBlock]


@dataclass(frozen=True, slots=True)
class LLMMessage:
    """One message of a request.

    Args:
        role: `tool` carries the result of one call.
        content: text; may be empty for an assistant message that only calls tools.
        tool_calls: the calls of an assistant message, in call order.
        tool_call_id: for `tool`: the id of the call it answers.
        tool_name: for `tool`: the tool's name (Ollama correlates by it).
        is_error: for `tool`: the envelope said `success: false`.
        blocks: for `assistant`: the provider's own blocks, replayed where provider and model still match.
        cache: put a cache mark behind this message.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    tool_name: str = ""
    is_error: bool = False
    blocks: ProviderBlocks | None = None
    cache: bool = False


@dataclass(frozen=True, slots=True)
class LLMResponse:
    """One whole answer. `tool_calls` is not empty exactly when `stop_reason` is `tool_use`."""

    content: str
    tool_calls: list[ToolCall] | None = None
    stop_reason: StopReason = "end_turn"
    thinking: str = ""
    model: str = ""
    usage: Usage = field(default_factory=lambda: Usage())
    blocks: ProviderBlocks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Everything an adapter needs for one call.

    Args:
        messages: the history, newest last; never empty.
        system: stable layers, in order.
        tools: canonical schemas, sorted by name.
        tool_choice: `none` where the wire has it; the tool list stays (design § 2.8).
        max_tokens: upper bound of the answer, tokens.
        temperature: None leaves the provider's default.
        thinking_tokens: a reasoning budget in tokens; 0 asks for none (CAP-007).
        response_schema: a JSON Schema the answer must follow, where the provider can hold it.
        deadline_s: whole call, seconds, retries excluded; None: the settings' value.
    """

    messages: tuple[LLMMessage, ...]
    system: SystemPrompt = ""
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: ToolChoice = "auto"
    max_tokens: int = 4096
    temperature: float | None = None
    thinking_tokens: int = 0
    response_schema: Mapping[str, Any] | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A fragment of one call; `name` and `id` come with its first fragment."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class UsageDelta:
    """Usage so far; a later one replaces it."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A retry begins: all text and calls so far are void."""

    reason: str


@dataclass(frozen=True, slots=True)
class RateLimited:
    """A wait before attempt `attempt` + 1, of `delay_s` seconds (CAP-006)."""

    message: str
    attempt: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class End:
    """The terminal marker: the whole response."""

    response: LLMResponse


ModelEvent = TextDelta | ThinkingDelta | ToolCallDelta | UsageDelta | Withdrawn | RateLimited | End
