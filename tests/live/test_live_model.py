"""Lane 3: a real model through our OpenAI adapter. Only the contract is asserted, never what the model says."""

from __future__ import annotations

import json

import pytest
from jsonschema import validate

from llm.errors import ContextTooLong, LLMCancelled
from llm.ports import BaseLLM, CancelToken
from llm.types import End, LLMMessage, ModelRequest, TextDelta

pytestmark = [pytest.mark.live_llm, pytest.mark.timeout(300)]


def ask(text: str, **options: object) -> ModelRequest:
    return ModelRequest(messages=(LLMMessage(role="user", content=text),), temperature=0, **options)  # type: ignore[arg-type]


def test_it_chats(live_llm: BaseLLM) -> None:
    response = live_llm.complete([LLMMessage(role="user", content="Say hello.")], "Be short.", 32, 0)
    assert response.content.strip()
    assert response.stop_reason in {"end_turn", "max_tokens"}
    assert response.usage["input_tokens"] > 0
    assert response.usage["output_tokens"] > 0


def test_a_stream_gives_what_the_whole_answer_gives(live_llm: BaseLLM) -> None:
    request = ask("Name three colours.", max_tokens=32)
    whole = live_llm.call(request)
    pieces: list[str] = []
    ends: list[End] = []

    def heard(event: object) -> None:
        if isinstance(event, TextDelta):
            pieces.append(event.text)
        if isinstance(event, End):
            ends.append(event)

    streamed = live_llm.call(request, on_event=heard)
    assert len(pieces) > 1
    assert "".join(pieces) == streamed.content == whole.content
    assert streamed.usage["output_tokens"] == whole.usage["output_tokens"]
    assert [end.response for end in ends] == [streamed]


def test_a_schema_bounds_the_answer(live_llm: BaseLLM) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    response = live_llm.call(ask("Where is the Eiffel tower?", max_tokens=128, response_schema=schema))
    validate(json.loads(response.content), schema)


def test_a_request_past_the_window_is_its_own_error(live_llm: BaseLLM) -> None:
    with pytest.raises(ContextTooLong):
        live_llm.call(ask("word " * 8000, max_tokens=16))


def test_a_cancel_keeps_what_had_arrived(live_llm: BaseLLM) -> None:
    token = CancelToken()

    def heard(event: object) -> None:
        if isinstance(event, TextDelta):
            token.cancel("enough")

    with pytest.raises(LLMCancelled) as caught:
        live_llm.call(ask("Count to one hundred in words.", max_tokens=512), on_event=heard, cancel=token)
    assert caught.value.partial is not None
    assert caught.value.partial.content
