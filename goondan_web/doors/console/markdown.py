"""Markdown of models as HTML: a safe subset, since its text may come from anywhere.

HTML stays text, links lead to http and https alone, and images are links: a page loads nothing that a text
names.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from goondan_tasks.contract.wording import printable

_SCHEMES = ("http://", "https://")
#: headings of a text stand below the name of who wrote it
_HEADING = "h4"


def markdown(text: str) -> Markup:
    """Return a text with control characters as escapes, and its Markdown as HTML."""
    return Markup(_parser().render(printable(text)))  # noqa: S704 - the parser escapes all but its own tags


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: url.lower().startswith(_SCHEMES)  # type: ignore[method-assign]
    parser.add_render_rule("image", _image)
    parser.add_render_rule("link_open", _link)
    for rule in ("heading_open", "heading_close"):
        parser.add_render_rule(rule, _heading)
    return parser


def _link(renderer: RendererHTML, tokens: Sequence[Token], place: int, options: Any, _: Any) -> str:
    tokens[place].attrSet("rel", "noreferrer noopener nofollow")
    return renderer.renderToken(tokens, place, options, {})


def _image(renderer: RendererHTML, tokens: Sequence[Token], place: int, options: Any, env: Any) -> str:
    image = tokens[place]
    link = Token("link_open", "a", 1, attrs={"href": str(image.attrGet("src") or "")})
    label = renderer.renderInlineAsText(image.children, options, env) or "image"
    return f"{_link(renderer, [link], 0, options, env)}{Markup.escape(label)}</a>"


def _heading(renderer: RendererHTML, tokens: Sequence[Token], place: int, options: Any, env: Any) -> str:
    tokens[place].tag = _HEADING
    return renderer.renderToken(tokens, place, options, env)
