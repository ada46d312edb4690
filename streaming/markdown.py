"""Markdown to HTML that is safe to put into a page: written by models and people, so nothing in it is trusted."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MAX_CHARACTERS: Final = 200_000
MAX_LINES: Final = 5_000
MAX_MARKS: Final = 20_000  # characters that may begin or end something within a line
MAX_CELLS: Final = 10_000
KEPT_CHARACTERS: Final = 16_000_000
MAX_HIGHLIGHTED: Final = 20_000  # a longer block is shown plain: a lexer may take seconds over it

_MARKS: Final = "[]*_`~<"
_RULER: Final = re.compile(r"[\s|:>*+\d.)-]+")  # what a table's second line is made of, in a quote or list too

_TAGS: Final = {
    *("p", "br", "hr", "strong", "em", "s", "code", "pre", "blockquote", "a", "span", "div"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES: Final = {
    "a": {"href", "title"},
    "code": {"class"},
    "pre": {"class"},
    "span": {"class"},
    "div": {"class"},
    "ol": {"start"},
}


def _highlight(code: str, language: str, _attributes: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    if not language or len(code) > MAX_HIGHLIGHTED:
        return ""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return highlight(code, lexer, HtmlFormatter(nowrap=True))


@cache
def _markdown() -> MarkdownIt:
    """Loaded with the first text: workers and commands lay none out.

    Raw HTML is shown as text. No images: fetching one tells its host who reads, and what the model was led to leak.
    """
    from markdown_it import MarkdownIt

    options = {"html": False, "linkify": False, "breaks": True, "highlight": _highlight, "maxNesting": 20}
    return MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("image")


class _Kept:
    """The HTML rendered last, by the text's digest: pages and event streams ask for the same texts again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._html: OrderedDict[bytes, str] = OrderedDict()
        self._characters = 0

    def get(self, digest: bytes) -> str | None:
        with self._lock:
            if digest in self._html:
                self._html.move_to_end(digest)
            return self._html.get(digest)

    def put(self, digest: bytes, html: str) -> None:
        with self._lock:
            if digest not in self._html:
                self._html[digest] = html
                self._characters += len(html)
            while self._characters > KEPT_CHARACTERS:
                self._characters -= len(self._html.popitem(last=False)[1])


_kept: Final = _Kept()


def render_markdown(text: str) -> str:
    """Safe HTML of Markdown, the same for the same text.

    Args:
        text: any text; past 200,000 characters it is cut, and says so. One that would take long to lay out, such as a
            table of very many cells, is shown as it was written.

    Returns:
        HTML of a closed set of tags; links open to http, https and mailto alone, with `rel=noopener`.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    html = _kept.get(digest)
    if html is None:
        html = _rendered(text)
        _kept.put(digest, html)
    return html


def _rendered(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}\n\n*… cut here: the text has {len(text):,} characters.*"
    import nh3

    return nh3.clean(
        f"<pre>{escape(text)}</pre>" if _is_laborious(text) else _markdown().render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        link_rel="noopener noreferrer nofollow",
        strip_comments=True,
    )


def _is_laborious(text: str) -> bool:
    """Whether laying the text out takes more than about half a second; short rows of a wide table are filled up."""
    if text.count("\n") > MAX_LINES or sum(map(text.count, _MARKS)) > MAX_MARKS:
        return True
    cells = columns = 0
    for line in text.splitlines():
        if "|" in line and _RULER.fullmatch(line):
            columns = line.count("|") + 1
        elif not line.strip(" >"):
            columns = 0
        cells += columns
    return cells > MAX_CELLS
