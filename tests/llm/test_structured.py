"""Model text to data: the right value or a refusal, never something else (CAP-008, CAP-009)."""

from __future__ import annotations

import contextlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from llm.arguments import parse_arguments, tool_call
from llm.errors import (
    InvalidJSON,
    LLMRefusal,
    LLMTruncated,
    NoJSON,
    SchemaMismatch,
    StructuredError,
    TruncatedJSON,
)
from llm.structured import ask, extract, extract_json_array, extract_json_object, normalize_llm_text, scan
from llm.testing import ScriptedLLM, say
from llm.types import LLMMessage, ModelRequest
from tests.llm.samples import CASES

ANY = {}  # a schema that takes everything
OBJECT = {"type": "object"}


def cases(name):
    entry = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=f"{entry['entry']}{case['id']}") for case in entry["cases"]]


@pytest.mark.parametrize("case", cases("01_json_fences") + cases("04_json_repair"))
def test_case(case):
    try:
        value = extract(case["text"], ANY)
    except StructuredError:
        assert case.get("error") or case.get("or_error")
        return
    assert value in (case.get("any_of") or [case["value"]])


@pytest.mark.parametrize("case", cases("06_tool_arguments"))
def test_arguments_case(case):
    import jsonschema

    call = tool_call("c1", "t", case["arguments"])
    refused = "arguments_error" in call or not jsonschema.Draft202012Validator(case["schema"]).is_valid(
        call["arguments"]
    )
    if case.get("tool_error"):
        assert refused
    elif refused:
        assert case.get("or_tool_error")
    else:
        assert call["arguments"] in case["runs_with"]


def test_arguments_that_are_no_json_value():
    assert parse_arguments('{"a": NaN}')[1]
    assert parse_arguments("[" * 100_000)[1]
    assert parse_arguments(3)[1]
    assert parse_arguments('{"a": 1e999}')[1]
    assert parse_arguments(json.dumps('{"a": [-1e999]}'))[1]


def nested(depth):
    value = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("depth", [65, 400, 900])
def test_arguments_nested_too_deeply_are_refused_as_text_and_as_an_object(depth, as_text):
    raw = '{"a":' * depth + "1" + "}" * depth if as_text else nested(depth)
    made = tool_call("c1", "t", raw)
    assert (made["arguments"], made["arguments_error"]) == ({}, "The arguments are nested too deeply.")
    assert "arguments_error" not in tool_call("c1", "t", nested(64))


def test_an_object_with_a_number_that_json_does_not_have_is_refused():
    made = tool_call("c1", "t", {"a": [{"b": float("inf")}]})
    assert (made["arguments"], "a number" in made["arguments_error"]) == ({}, True)


def test_a_name_longer_than_any_tools_is_cut_and_an_id_of_any_length_kept():
    made = tool_call("i" * 500, "n" * 500, {})
    assert (made["id"], made["name"]) == ("i" * 500, "n" * 128)


RIGHT = {
    "plain": ('{"a": 1}', {"a": 1}),
    "bom": ('\ufeff{"a": 1}', {"a": 1}),
    "thinking closed": ('<think>maybe {"a": 0}?</think>\n{"a": 1}', {"a": 1}),
    "thinking tag in capitals": ('<THINKING>{"a": 0}</THINKING>{"a": 1}', {"a": 1}),
    "thinking opened by the template": ('I wonder {"a": 0}\n</think>\n\n{"a": 1}', {"a": 1}),
    "thinking never closed, answer last": ('<think>so, finally:\n```json\n{"a": 1}\n```', {"a": 1}),
    "a tag inside a string": ('{"a": "<think>x</think>"}', {"a": "<think>x</think>"}),
    "a closing tag inside a string": ('Here: {"a": "x </think> y"}', {"a": "x </think> y"}),
    "citations": ('As [1] says, see [2, 3]: {"a": 1} [4]', {"a": 1}),
    "prose brackets": ('{see below} [or not] the answer is {"a": 1} {port}', {"a": 1}),
    "the last answer": ('First {"a": 0}. No, wait: {"a": 1}', {"a": 1}),
    "a broken draft before": ('{"a": oops, "b": {"a": 7}} I mean {"a": 1}', {"a": 1}),
    "a fence of another language behind": ('{"a": 1}\n```python\nx = {"a": 2}\n```', {"a": 1}),
    "smart quotes": ("{\u201ca\u201d: \u201cit\u2019s\u201d}", {"a": "it\u2019s"}),
    "single quotes": ("{'a': 'he said \"no\"'}", {"a": 'he said "no"'}),
    "comments": ('{"a": 1, // one\n /* two */ "b": 2 # three\n}', {"a": 1, "b": 2}),
    "keys without quotes": ("{a: 1, b_c: [true, None]}", {"a": 1, "b_c": [True, None]}),
    "raw control characters": ('{"a": "x\n\ty"}', {"a": "x\n\ty"}),
    "json in a string": (json.dumps(json.dumps({"a": 1})), {"a": 1}),
    "cut out of a string": ('{\\"a\\": \\"b\\"}', {"a": "b"}),
    "a pair of surrogates": ('{"a": "\\ud83d\\ude80",}', {"a": "\U0001f680"}),
    "big numbers": ("{'a': 12345678901234567890123, 'b': -0.5e3}", {"a": 12345678901234567890123, "b": -500.0}),
    "tilde fence": ('~~~json\n{"a": 1}\n~~~', {"a": 1}),
    "same value twice": ('{"a": 1}\n{"a": 1}', {"a": 1}),
    "deep enough": ("x " + "[" * 90 + "1" + "]" * 90, json.loads("[" * 90 + "1" + "]" * 90)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name):
    text, value = RIGHT[name]
    assert extract(text, OBJECT if isinstance(value, dict) else ANY) == value


REFUSED = {
    "nothing": ("", NoJSON),
    "prose": ("I could not find anything.", NoJSON),
    "empty fence": ("```json\n\n```", NoJSON),
    "truncated": ('{"a": [1, 2', TruncatedJSON),
    "truncated string": ('```json\n{"a": "hel', TruncatedJSON),
    "truncated after an example": ('Like {"a": 1}. So: {"a', TruncatedJSON),
    "nan": ('{"a": NaN}', InvalidJSON),
    "infinity by size": ('{"a": 1e999}', InvalidJSON),
    "unescaped quotes": ('{"a": "she said "no", then left"}', InvalidJSON),
    "missing comma": ('{"a": 1 "b": 2}', InvalidJSON),
    "an ellipsis": ('{"a": ["x", ...]}', InvalidJSON),
    "a key twice": ('{"a": 1, "a": 2}', InvalidJSON),
    "a path with a tab in it": (r'{"a": "C:\dir\temp"}', InvalidJSON),
    "half a surrogate pair": ('{"a": "\\ud83d", }', InvalidJSON),
    "two answers": ('{"a": 1}{"a": 2}', InvalidJSON),
    "too deep": ('{"a": ' + "[" * 200 + "]" * 200 + ",}", InvalidJSON),
    "broken after an example": ('Like {"a": 1}. So: {"a": }', InvalidJSON),
    "a draft in open reasoning": ('<think>maybe {"a": 1}, or rather', InvalidJSON),
    "an array instead": ("[1, 2]", SchemaMismatch),
    "cut reasoning": ("<think>let me see", NoJSON),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, error = REFUSED[name]
    with pytest.raises(error) as caught:
        extract(text, OBJECT)
    assert not caught.value.retryable
    assert extract_json_object(text) is None


def test_the_place_of_a_fault_is_named():
    with pytest.raises(InvalidJSON) as caught:
        extract('Sure:\n{"a": 1,\n "b": oops}', OBJECT)
    assert (caught.value.details["line"], caught.value.details["column"]) == (3, 7)


def test_cap_009_thinking_wrapped_json_array_parses():
    assert extract_json_array('<think>[{"k": 0}]</think>```json\n[{"k": 1}, {"k": 2}]\n```') == [{"k": 1}, {"k": 2}]


@pytest.mark.parametrize("text", ['{"k": 1}\n{"k": 2}\n', '```jsonl\n{"k": 1}\n{"k": 2}\n```', '{"k": 1},\n{"k": 2},'])
def test_json_lines_are_an_array(text):
    assert extract_json_array(text) == [{"k": 1}, {"k": 2}]


@pytest.mark.parametrize("text", ["[1, 2]", '[{"k": 1}, 2]', '{"k": 1}', "none", '[{"k": 1}, {"k"'])
def test_no_array_of_objects(text):
    assert extract_json_array(text) is None


def test_an_empty_array_is_an_answer():
    assert extract_json_array("Nothing to do: []") == []


class Verdict(BaseModel):
    key: str
    score: int


def test_the_schema_decides_among_candidates_and_makes_the_instance():
    text = 'An example: {"key": "x", "score": "high"}\nAnswer: {"key": "y", "score": 3}\nMeta: {"tokens": 12}'
    assert extract(text, Verdict) == Verdict(key="y", score=3)
    assert extract('[{"key": "y", "score": 3}]', list[Verdict]) == [Verdict(key="y", score=3)]


def test_a_mismatch_names_the_places_and_not_the_values():
    with pytest.raises(SchemaMismatch) as caught:
        extract('{"key": 7, "score": "secret"}', Verdict)
    assert [problem.split(":")[0] for problem in caught.value.details["problems"]] == ["$.key", "$.score"]
    assert "secret" not in str(caught.value)
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    with pytest.raises(SchemaMismatch) as caught:
        extract('{"secret": "value"}', schema)
    assert caught.value.details["problems"] == ["$: missing n", "$: unknown secret"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("<think>hm</think>\n\nParis", "Paris"),
        ("```json\n[1]\n```", "[1]"),
        ("```\nopen", "open"),
        ("before ```x``` after", "before ```x``` after"),
        ("hm </think> Paris", "Paris"),
        ('{"a": "</think>"}', '{"a": "</think>"}'),
        ("```a\n1\n```\n```b\n2\n```", "```a\n1\n```\n```b\n2\n```"),
        ("", ""),
    ],
)
def test_normalize_llm_text(raw, text):
    assert normalize_llm_text(raw) == text


HOSTILE = [
    *("[", "{", '[{"a":', '"', "```\n", "<think>", "[1,", "//", '{"a":"', "[x ", '{"a":1}', "[/*", "{'", "\\"),
    *("</think>", '{"a":{"b":', "[[1],", " \n", "[{]}", '{"k" : [', "`", "~~~\n", "# [", "“", '{"a":1}x{'),
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_work_grows_with_the_length_whatever_the_text(unit):
    steps = [scan(unit * (size // len(unit))).steps for size in (20_000, 40_000)]
    assert steps[1] <= 2.2 * steps[0] + 200


def test_a_megabyte_of_brackets():
    assert scan("[" * 1_000_000).steps <= 3_000_000
    with pytest.raises(InvalidJSON):
        extract("[" * 1_000_000, OBJECT)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4), st.integers(0, 5), st.booleans())
def test_whatever_is_valid_comes_out_as_it_is(value, wrapping, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=wrapping or None)
    wrapped = [
        text,
        f"```json\n{text}\n```",
        f"Sure, here it is:\n{text}",
        f"<think>x</think>{text}",
        f"{text}\nDone.",
        text,
    ]
    assert extract(wrapped[wrapping], OBJECT) == value


@given(st.dictionaries(st.text(min_size=1), JSON_VALUES, min_size=1, max_size=4), st.data())
def test_a_truncated_answer_is_never_a_value(value, data):
    text = json.dumps(value)
    cut = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(StructuredError):
        extract(text[:cut], OBJECT)


@given(st.text(alphabet="{}[]\",:'`\\ntrue1 <think>/*#-x", max_size=60))
def test_no_text_breaks_it(text):
    with contextlib.suppress(StructuredError):
        extract(text, ANY)
    normalize_llm_text(text)


def ask_for(*answers):
    llm = ScriptedLLM(answers)
    request = ModelRequest(messages=(LLMMessage("user", "Judge x."),))
    return llm, request


def test_a_faulty_answer_is_repaired_once_with_its_faults_named():
    llm, request = ask_for('{"key": "x", "score": "a very long secret"}', '{"key": "x", "score": 2}')
    answer = ask(llm, request, Verdict)
    assert answer.value == Verdict(key="x", score=2)
    assert len(answer.responses) == 2
    note = llm.requests[1].messages[-1].content
    assert "$.score" in note
    assert "secret" not in note
    assert llm.requests[0].response_schema["properties"].keys() == {"key", "score"}


def test_a_second_faulty_answer_is_the_error():
    llm, request = ask_for("no", "still no")
    with pytest.raises(NoJSON):
        ask(llm, request, Verdict)
    assert llm.remaining == 0


def test_a_cut_or_refused_answer_is_not_asked_for_again():
    llm, request = ask_for(say('{"key": "x", "score": 2}', stop_reason="max_tokens"))
    with pytest.raises(LLMTruncated):
        ask(llm, request, Verdict)
    llm, request = ask_for(say("I will not.", stop_reason="refusal"))
    with pytest.raises(LLMRefusal):
        ask(llm, request, Verdict)
    assert len(llm.requests) == 1


def test_mutated_answers_are_right_or_refused():
    """Dropping one character of a valid answer never yields another value of the same shape by repair."""
    random.seed(7)
    value = {"name": 'it\'s a "test"', "items": [{"n": 1, "s": "a, b"}, {"n": 22, "s": "c:d"}], "ok": True}
    text = json.dumps(value)
    for at in range(len(text)):
        mutated = text[:at] + text[at + 1 :]
        try:
            strict_value = json.loads(mutated)
        except ValueError:
            found = extract_json_object(mutated)
            assert found is None or found == value, mutated
        else:
            assert extract_json_object(mutated) == strict_value
