from pathlib import Path

from workers.testing import run_tool

BUNDLE = Path(__file__).parent


def test_text_is_converted() -> None:
    result = run_tool(BUNDLE, "writer", "text__uppercase", {"text": "hello"})
    assert result.output == {"result": "HELLO"}


def test_text_is_required() -> None:
    result = run_tool(BUNDLE, "writer", "text__uppercase", {})
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"
