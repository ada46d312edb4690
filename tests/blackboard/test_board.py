"""The board: allow-listed, short, never shown, never lost to a bad text (CAP-070 – 073)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackboard.board import Blackboard
from blackboard.extract import VisibleText, extract
from blackboard.replies import ReplyBoard
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


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (r'{"phase": "a\u0000b"}', "a\ufffdb"),
        (r'{"phase": "half \ud83d"}', "half \ufffd"),
        (r'{"phase": "whole \ud83d\ude00"}', "whole \U0001f600"),
        (r'{"phase": ["in a list \ud83d"]}', '["in a list \ufffd"]'),
        ("phase: a\0b", "a\ufffdb"),
    ],
)
def test_cap_072_a_board_is_given_as_the_database_can_hold_it(said, kept):
    found = extract(f"<board>{said}</board>")
    assert found.board == {"phase": kept}
    json.dumps(found.board, ensure_ascii=False).encode()


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


def test_a_replys_board_waits_for_its_commit_and_an_agent_without_one_says_what_it_says():
    text = f"One.\n{block({'phase': 'one'})}"
    replies = ReplyBoard(kept=True)
    assert (replies.take(text), replies.visible(text), replies.visible("Two. <board>")) == ("One.", "One.", "Two.")
    assert (replies.written, replies.told) == ({"phase": "one"}, {"status": "set", "board": {"phase": "one"}})
    replies.stored()
    assert (replies.written, replies.told) == (None, None)
    replies.take("Three. <board>oh</board>")
    assert (replies.written, replies.told) == (None, {"status": "retain", "board": None})
    replies.take("Four.")
    assert (replies.written, replies.told) == (None, None)
    plain = ReplyBoard(kept=False)
    assert (plain.take(text), plain.visible(text), plain.written, plain.told) == (text, text, None, None)


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
    squeezed = extract(text)
    if squeezed.had_block:
        assert "".join(squeezed.visible.split()) == "".join(outside.split())


def test_every_block_is_taken_out_and_the_first_one_counts():
    text = (
        f"One.\n{block({'phase': 'a'})} two {block({'phase': 'b'})}{block({'phase': 'c'})}\nthree <board>never closed"
    )
    found = extract(text)
    assert (found.visible, found.board) == ("One.\n\ntwo\n\nthree", {"phase": "a"})
