"""What of a server's answer is the output."""

from typing import Any

import pytest
from mcp_types import CallToolResult

from workers.mcp.results import error_text, output_of

TEXT = {"type": "text", "text": "12°"}
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ({"content": []}, ""),
        ({"content": [TEXT]}, "12°"),
        ({"content": [TEXT, TEXT]}, "12°\n12°"),
        ({"content": [TEXT, IMAGE]}, {"content": [TEXT, IMAGE]}),
        ({"content": [TEXT], "structuredContent": {"degrees": 12}}, {"degrees": 12}),
        ({"content": [], "structuredContent": {}}, {}),
        (
            {"content": [IMAGE], "structuredContent": {"width": 1}, "_meta": {"x": 1}},
            {"content": [IMAGE], "structuredContent": {"width": 1}},
        ),
    ],
)
def test_output_is_the_structure_else_the_text_else_all_content(answer: dict[str, Any], output: Any) -> None:
    assert output_of(CallToolResult.model_validate(answer)) == output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([TEXT, TEXT], "12°\n12°"),
        ([], "The tool failed without saying why."),
        ([IMAGE], "The tool failed without saying why."),
    ],
)
def test_an_error_is_its_text(content: list[Any], message: str) -> None:
    assert error_text(CallToolResult.model_validate({"content": content, "isError": True})) == message
