"""Markdown of models in pages: what is shown, and what is not."""

import re

import pytest

from goondan_web.doors.console.markdown import markdown


def test_usual_markdown_is_html() -> None:
    shown = markdown(
        "# Order\n\nIt *was* **paid**, `once`:\n\n1. a\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n```\n1 < 2\n```"
    )

    for part in (
        "<h4>Order</h4>",
        "<em>was</em>",
        "<strong>paid</strong>",
        "<code>once</code>",
        "<ol>",
        "<td>2</td>",
    ):
        assert part in shown
    assert "<pre><code>1 &lt; 2\n</code></pre>" in shown


@pytest.mark.parametrize(
    "text",
    [
        "<script>hit()</script>",
        "<img src=x onerror=hit()>",
        "a <b onclick=hit()>b</b>",
        "[a](javascript:hit())",
        "[a](JaVaScRiPt:hit())",
        "[a](data:text/html,hit)",
        "[a](/console/calls)",
        "[a](//elsewhere.example)",
        "[a]: vbscript:hit\n\n[a]",
        "<javascript:hit()>",
        '[a](https://e.example "\\" onclick=hit() \\"")',
        "![a](javascript:hit())",
        '```" onclick=hit()\nx\n```',
        "**a\x1b[31m\u202eb**",
    ],
)
def test_text_neither_runs_nor_links_to_console(text: str) -> None:
    shown = str(markdown(text))

    tags = re.findall(r"<[^>]*>", shown)
    allowed = re.compile(
        r'</?(p|a|strong|pre|code)( (href="https://e\.example"|rel="[a-z ]+"'
        r'|class="language-&quot;"|title="[^"<>]*"))*>'
    )
    assert all(allowed.fullmatch(tag) for tag in tags), tags
    assert not {"\x1b", "\u202e"} & set(shown)


def test_links_send_no_referrer_images_become_links() -> None:
    shown = markdown(
        "[a](https://e.example/x) ![A *cat*](http://e.example/cat.png) ![](https://e.example/b.png)"
    )

    rel = 'rel="noreferrer noopener nofollow"'
    assert f'<a href="https://e.example/x" {rel}>a</a>' in shown
    assert f'<a href="http://e.example/cat.png" {rel}>A cat</a>' in shown
    assert f'<a href="https://e.example/b.png" {rel}>image</a>' in shown
    assert "<img" not in shown
