"""Which outputs are MCP content."""

from typing import Any

import pytest
from mcp_types import CallToolResult

from goondan_tasks.mcp_server.content import content_of, may_begin_content

TEXT = {"type": "text", "text": "A dot:"}
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "", "mimeType": "audio/wav; codecs=1"}
LINK = {"type": "resource_link", "uri": "file:///dot.png", "name": "dot"}
TEXT_RESOURCE = {"type": "resource", "resource": {"uri": "x://y", "mimeType": "text/plain", "text": "hi"}}
BLOB_RESOURCE = {"type": "resource", "resource": {"uri": "x://y", "blob": "AAA="}}
NOTED = {**IMAGE, "annotations": {"audience": ["user"]}, "_meta": {"a": 1}}


def written(blocks: Any) -> Any:
    """Return blocks as a client gets them."""
    result = CallToolResult(content=blocks).model_dump(mode="json", by_alias=True, exclude_none=True)
    return result["content"]


@pytest.mark.parametrize("block", [IMAGE, AUDIO, LINK, TEXT_RESOURCE, BLOB_RESOURCE, NOTED])
def test_a_block_a_list_of_blocks_and_content_are_content(block: dict[str, Any]) -> None:
    for output, blocks in (
        (block, [block]),
        ([block], [block]),
        ([TEXT, block, TEXT], [TEXT, block, TEXT]),
        ({"content": [block]}, [block]),
        ({"content": [TEXT, block]}, [TEXT, block]),
    ):
        content = content_of(output)
        assert content is not None, output
        assert written(content.blocks) == blocks
        assert content.structured is None


def test_structured_content_may_stand_beside_content() -> None:
    content = content_of({"content": [IMAGE], "structuredContent": {"width": 1}})

    assert content is not None
    assert content.structured == {"width": 1}


@pytest.mark.parametrize(
    "output",
    [
        None,
        1,
        "text",
        [],
        {},
        [1],
        TEXT,
        [TEXT, TEXT],
        {"content": [TEXT]},
        {"content": []},
        {"content": IMAGE},
        {"content": [IMAGE], "name": "dot.png"},
        {"content": [IMAGE], "structuredContent": [1]},
        {"structuredContent": {}},
        [IMAGE, {"n": 1}],
        [IMAGE, [IMAGE]],
        {"data": "AAAA", "mimeType": "image/png"},
        {**IMAGE, "type": ["image"]},
        {**IMAGE, "type": "video"},
        {**IMAGE, "data": "not base64"},
        {**IMAGE, "data": "AAA"},
        {**IMAGE, "data": "AA_-"},
        {**IMAGE, "data": "한"},
        {**IMAGE, "data": None},
        {**IMAGE, "mimeType": "png"},
        {**IMAGE, "mimeType": "image/png\r\nx: y"},
        {"type": "image", "data": "AAAA", "mime_type": "image/png"},
        {"type": "resource_link", "uri": "x://y"},
        {"type": "resource", "resource": {"uri": "x://y"}},
        {"type": "resource", "resource": {"uri": "x://y", "blob": "?"}},
        {"type": "resource", "resource": {"uri": "x://y", "text": "", "mimeType": "?"}},
    ],
)
def test_anything_else_is_data(output: Any) -> None:
    assert content_of(output) is None


@pytest.mark.parametrize(
    ("preview", "may"),
    [
        ('{"type":"image","data":"AAAA', True),
        ('{"mimeType":"image/png","data":"AAAA', True),
        ('[{"type":"text","text":"x"},{"type":"resource_link","uri', True),
        ('{"rows":[1,2,3', False),
        ('"a text with \\"data\\":\\"x', False),
        ("", False),
    ],
)
def test_the_beginning_of_a_large_output_tells_whether_it_may_be_content(preview: str, may: bool) -> None:
    assert may_begin_content(preview) is may
