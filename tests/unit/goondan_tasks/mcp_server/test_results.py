"""A ToolCallResult as MCP's."""

from typing import Any

import pytest
from mcp_types import TextContent

from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.mcp_server.results import call_tool_result, refused
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, META, result


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
def test_an_output_is_text_and_an_object_is_structured_too(output: Any, text: str, structured: Any) -> None:
    answer = call_tool_result(result(output=output))

    assert (text_of(answer), answer.structured_content, answer.is_error) == (text, structured, False)
    assert answer.meta == {"goondan.ai/callId": CALL_ID}


def test_an_output_that_is_content_stands_as_it_is() -> None:
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}

    answer = call_tool_result(result(output={"content": [image], "structuredContent": {"width": 1}}))

    [block] = answer.content
    assert block.model_dump(by_alias=True, exclude_none=True) == image
    assert (answer.structured_content, answer.is_error) == ({"width": 1}, False)
    assert answer.meta == {"goondan.ai/callId": CALL_ID}


def test_of_a_large_output_the_file_is_named() -> None:
    answer = call_tool_result(
        result(output="the beginning", meta={**META, "outputFile": ".goondan/out.json"})
    )

    assert text_of(answer).endswith(
        "The whole output is in the file .goondan/out.json of the tools' workdir."
    )


def test_an_error_is_structured_and_readable() -> None:
    error = {"code": "E_FORGE", "name": "ForgeError", "message": "cold", "suggestion": "Use coal."}

    answer = call_tool_result(result("error", error=error))

    assert answer.is_error
    assert answer.structured_content == {"error": error}
    assert text_of(answer) == "E_FORGE: cold\nUse coal."


def test_what_was_not_submitted_is_such_an_error_too() -> None:
    answer = refused(BrokerUnreachableError("Redis is away."), "https://help.example/")

    assert answer.is_error
    assert answer.structured_content["error"]["code"] == "E_BROKER_UNREACHABLE"
    assert answer.structured_content["error"]["helpUrl"] == "https://help.example/E_BROKER_UNREACHABLE"
