"""What a server's tool returned, as the output of a call."""

from typing import Any

from mcp_types import CallToolResult, TextContent

#: what an answer without any text says
SILENT_ERROR = "The tool failed without saying why."


def error_text(result: CallToolResult) -> str:
    """Return what a server says of a tool that has failed."""
    return _text(result) or SILENT_ERROR


def output_of(result: CallToolResult) -> Any:
    """Return the structured content if there is any, else the text.

    An answer with other content than text comes whole, as MCP has it: ``{"content": […]}``, and
    ``structuredContent`` beside it. :mod:`goondan_tasks.mcp_server.content` reads it back.
    """
    if not all(isinstance(block, TextContent) for block in result.content):
        whole = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {name: whole[name] for name in ("content", "structuredContent") if name in whole}
    return _text(result) if result.structured_content is None else result.structured_content


def _text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))
