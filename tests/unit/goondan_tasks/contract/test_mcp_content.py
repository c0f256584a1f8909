"""MCP content in outputs, and results as MCP clients get them."""

from typing import Any

import pytest
from mcp_types import CallToolResult, TextContent

from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.mcp_content import call_tool_result, content_of, may_begin_content, refused
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, META, result

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
def test_block_list_of_blocks_and_content_are_content(block: dict[str, Any]) -> None:
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
def test_beginning_of_large_output_may_rule_out_content(preview: str, may: bool) -> None:
    assert may_begin_content(preview) is may


def text_of(answer: Any) -> str:
    """Return the one text of a result."""
    [content] = answer.content
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.parametrize(
    ("output", "text", "structured"),
    [
        ("plain", "plain", None),
        ({"a": [1, None], "ü": "한"}, '{"a":[1,null],"ü":"한"}', {"a": [1, None], "ü": "한"}),
        ([1, 2], "[1,2]", None),
        (None, "null", None),
        (False, "false", None),
    ],
)
def test_output_is_text_and_object_is_structured_too(output: Any, text: str, structured: Any) -> None:
    answer = call_tool_result(result(output=output))

    assert (text_of(answer), answer.structured_content, answer.is_error) == (text, structured, False)
    assert answer.meta == {"goondan.ai/callId": CALL_ID}


def test_output_that_is_content_is_unchanged() -> None:
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}

    answer = call_tool_result(result(output={"content": [image], "structuredContent": {"width": 1}}))

    [block] = answer.content
    assert block.model_dump(by_alias=True, exclude_none=True) == image
    assert (answer.structured_content, answer.is_error) == ({"width": 1}, False)
    assert answer.meta == {"goondan.ai/callId": CALL_ID}


def test_of_large_output_file_is_named() -> None:
    answer = call_tool_result(
        result(output="the beginning", meta={**META, "outputFile": ".goondan/out.json"})
    )

    assert text_of(answer).endswith(
        "The whole output is in the file .goondan/out.json of the tools' workdir."
    )


def test_error_is_structured_and_readable() -> None:
    error = {"code": "E_FORGE", "name": "ForgeError", "message": "cold", "suggestion": "Use coal."}

    answer = call_tool_result(result("error", error=error))

    assert answer.is_error
    assert answer.structured_content == {"error": error}
    assert text_of(answer) == "E_FORGE: cold\nUse coal."


def test_failed_submission_is_structured_error_too() -> None:
    answer = refused(BrokerUnreachableError("Redis is away."), "https://help.example/")

    assert answer.is_error
    assert answer.structured_content["error"]["code"] == "E_BROKER_UNREACHABLE"
    assert answer.structured_content["error"]["helpUrl"] == "https://help.example/E_BROKER_UNREACHABLE"
