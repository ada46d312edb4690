"""Markdown to HTML that is safe to put into a page: written by models and people, so nothing in it is trusted."""

from __future__ import annotations

from typing import Final

import nh3
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

MAX_CHARACTERS: Final = 200_000
MAX_HIGHLIGHTED: Final = 20_000  # a longer block is shown plain: a lexer may take seconds over it

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
_FORMATTER: Final[HtmlFormatter[str]] = HtmlFormatter(nowrap=True)


def _highlight(code: str, language: str, _attributes: str) -> str:
    if not language or len(code) > MAX_HIGHLIGHTED:
        return ""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return highlight(code, lexer, _FORMATTER)


# Raw HTML is shown as text. No images: fetching one tells its host who reads, and what the model was led to leak.
_MARKDOWN: Final = MarkdownIt(
    "commonmark", {"html": False, "linkify": False, "breaks": True, "highlight": _highlight, "maxNesting": 20}
).enable(["table", "strikethrough"])
_MARKDOWN.disable("image")


def render_markdown(text: str) -> str:
    """Safe HTML of Markdown.

    Args:
        text: any text; past 200,000 characters it is cut, and says so.

    Returns:
        HTML of a closed set of tags; links open to http, https and mailto alone, with `rel=noopener`.
    """
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}\n\n*… cut here: the text has {len(text):,} characters.*"
    return nh3.clean(
        _MARKDOWN.render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        link_rel="noopener noreferrer nofollow",
        strip_comments=True,
    )
