"""The board: allow-listed, short, never shown, never lost to a bad text (CAP-070 – 073)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackboard.board import Blackboard
from blackboard.extract import VisibleText, extract
from blackboard.types import KEYS


def block(board: object) -> str:
    return f"<board>{json.dumps(board)}</board>"


def test_cap_070_only_the_five_keys_are_kept():
    assert KEYS == ("phase", "hypothesis", "current_plan", "last_actions", "next_intent")
    found = extract("Hello.\n\n" + block({"phase": "explore", "mood": "good", "next_intent": ["a", 1]}))
    assert (found.visible, found.board) == ("Hello.", {"phase": "explore", "next_intent": '["a", 1]'})


def test_cap_071_all_of_it_has_at_most_500_characters():
    found = extract(block(dict.fromkeys(KEYS, "x" * 300)))
    assert found.board is not None
    assert sum(len(value) for value in found.board.values()) == 500
    assert list(found.board) == ["phase", "hypothesis"]


def test_lines_are_read_too():
    assert extract("<board>\nphase: plan\n- next_intent = ask\nnonsense\n</board>").board == {
        "phase": "plan",
        "next_intent": "ask",
    }


@pytest.mark.parametrize(
    "bad",
    ['<board>{"phase": </board>', "<board>[1]</board>", "<board></board>", "<board>never closed", block({"mood": "x"})],
)
def test_cap_072_a_bad_text_keeps_the_old_board(bad):
    board = Blackboard()
    assert board.set_from_model_text(block({"phase": "one"}))
    assert board.set_from_model_text(f"Text. {bad}") is False
    assert board.data == {"phase": "one"}
    assert extract(f"Text. {bad}").visible == "Text."


def test_a_text_without_a_block_is_left_alone():
    assert extract("Just <b>text</b>.  ").visible == "Just <b>text</b>.  "


pieces = st.lists(
    st.sampled_from(["<", "<boa", "rd>", "<board>", "</board>", "</", "board>", "hi ", "a<b", "{}", "\n"]), max_size=12
)


@given(pieces)
def test_what_is_streamed_never_shows_the_inside_of_a_block(parts):
    text = "".join(parts)
    stream = VisibleText()
    shown = "".join(stream.feed(part) for part in parts) + stream.close()
    outside, inside = "", False
    rest = text
    while rest:
        mark = "</board>" if inside else "<board>"
        if rest.startswith(mark):
            inside, rest = not inside, rest[len(mark) :]
        else:
            outside, rest = outside + ("" if inside else rest[0]), rest[1:]
    assert shown == outside
