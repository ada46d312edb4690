"""The same answer, streamed and whole, is the same response; and an error is the same error either way (CAP-003)."""

from __future__ import annotations

import json

import pytest

from llm.errors import LLMError
from tests.llm.samples import ASK, adapter, names, sample, serving

SSE = {"content-type": "text/event-stream"}


def whole_answers():
    found = names(api=("messages", "chat.completions", "responses", "chat"))
    good = [n for n in found if not sample(n)["stream"] and sample(n)["expect"]["outcome"] != "error"]
    return [name for name in good if name != "ollama/tool_call_arguments_string"]


def as_stream(wire, body):
    """A whole answer's body cut into the stream that the provider would have sent."""
    cut = {"anthropic": messages, "openai_chat": chat, "openai_responses": responses, "ollama": ollama}[wire]
    return {"stream": True, "status": 200, **cut(body)}


def halves(text):
    return [text[: len(text) // 2], text[len(text) // 2 :]] if text else []


def messages(body):
    start = {**body, "content": [], "stop_reason": None, "usage": {**body["usage"], "output_tokens": 1}}
    events = [{"type": "message_start", "message": start}]
    for index, block in enumerate(body["content"]):
        kind = block["type"]
        opened = {**block}
        deltas = []
        if kind == "text":
            opened["text"] = ""
            deltas = [{"type": "text_delta", "text": part} for part in halves(block["text"])]
        elif kind == "thinking":
            opened |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": part} for part in halves(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif kind == "tool_use":
            opened["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in halves(json.dumps(block["input"]))]
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": body.get("stop_sequence")}
    events += [{"type": "message_delta", "delta": delta, "usage": body["usage"]}, {"type": "message_stop"}]
    return {"headers": SSE, "sse": [{"event": event["type"], "data": event} for event in events]}


def chat(body):
    head = {"id": body["id"], "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    choice, deltas = body["choices"][0], [{"role": "assistant", "content": ""}]
    message = choice["message"]
    for name in ("reasoning_content", "content", "refusal"):
        deltas += [{name: part} for part in halves(message.get(name))]
    for index, call in enumerate(message.get("tool_calls") or []):
        first, *rest = halves(call["function"]["arguments"]) or [""]
        function = {"name": call["function"]["name"], "arguments": first}
        deltas.append({"tool_calls": [{**call, "index": index, "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in rest]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    chunks.append({**head, "choices": [], "usage": body.get("usage")})
    return {"headers": SSE, "sse": [{"data": chunk} for chunk in chunks] + [{"data": "[DONE]"}]}


def responses(body):
    events = [{"type": "response.created", "response": {**body, "status": "in_progress", "output": [], "usage": None}}]
    for index, item in enumerate(body["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress"} | {n: [] for n in ("content", "summary") if n in item}
        if item["type"] == "function_call":
            empty["arguments"] = ""
        events.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        for part, summary in enumerate(item.get("summary") or []):
            kind = "response.reasoning_summary_text.delta"
            events += [{"type": kind, **at, "summary_index": part, "delta": half} for half in halves(summary["text"])]
        for part, content in enumerate(item.get("content") or []):
            refusal = content["type"] == "refusal"
            kind = "response.refusal.delta" if refusal else "response.output_text.delta"
            text = content["refusal" if refusal else "text"]
            events += [{"type": kind, **at, "content_index": part, "delta": half} for half in halves(text)]
        for half in halves(item.get("arguments")):
            events.append({"type": "response.function_call_arguments.delta", **at, "delta": half})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    end = "response.completed" if body["status"] == "completed" else "response.incomplete"
    events.append({"type": end, "response": body})
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return {"headers": SSE, "sse": [{"event": event["type"], "data": event} for event in numbered]}


def ollama(body):
    message, head = body["message"], {"model": body["model"], "created_at": body["created_at"], "done": False}
    lines = [
        {**head, "message": {"role": "assistant", "content": "", "thinking": t}}
        for t in halves(message.get("thinking"))
    ]
    lines += [{**head, "message": {"role": "assistant", "content": t}} for t in halves(message.get("content"))]
    for call in message.get("tool_calls") or []:
        lines.append({**head, "message": {"role": "assistant", "content": "", "tool_calls": [call]}})
    lines.append({**body, "message": {"role": "assistant", "content": ""}})
    return {"headers": {"content-type": "application/x-ndjson"}, "ndjson": lines}


def without_made_ids(response):
    """What there is to compare: ids that we made differ from call to call."""
    calls = [{**call, "id": call["id"] if len(call["id"]) < 24 else "made"} for call in response.tool_calls or []]
    blocks = json.loads(json.dumps(response.blocks))
    return (response.content, response.thinking, calls, response.stop_reason, response.model, response.usage, blocks)


@pytest.mark.parametrize("name", whole_answers())
def test_streamed_and_whole_give_the_same_response(name):
    wire, case = name.split("/")[0], sample(name)
    with serving(case, as_stream(wire, case["body"])) as server:
        llm = adapter(wire, server.url)
        whole, streamed = llm.call(ASK), llm.call(ASK, on_event=lambda _event: None)
        assert [bool(request.body.get("stream")) for request in server.requests] == [False, True]
    assert without_made_ids(streamed) == without_made_ids(whole)


def error_answers():
    found = names(api=("messages", "chat.completions", "responses", "chat"))
    return [name for name in found if sample(name)["expect"]["outcome"] == "error" and sample(name)["status"] != 200]


@pytest.mark.parametrize("name", error_answers())
def test_an_error_is_the_same_whether_a_stream_was_asked_for(name):
    wire, case = name.split("/")[0], sample(name)
    raised = []
    for ask in ({}, {"on_event": lambda _event: None}):
        with serving(case) as server, pytest.raises(LLMError) as caught:
            adapter(wire, server.url).call(ASK, **ask)
        raised.append((type(caught.value), caught.value.details, caught.value.retry_after_s, caught.value.final))
    assert raised[0] == raised[1]
