"""What a server's tool returned, as the output of a call."""

from typing import Any

from mcp_types import CallToolResult, TextContent

from goondan_tasks.errors import ToolError

#: what an answer without any text says
SILENT_ERROR = "The tool failed without saying why."


def output_of(result: CallToolResult) -> Any:
    """Return the structured content if there is any, else the text; other content comes as MCP has it.

    Raises:
        ToolError: the server says that the tool failed; the message is its text.
    """
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if result.is_error:
        raise ToolError("\n".join(texts) or SILENT_ERROR)
    if result.structured_content is not None:
        return result.structured_content
    if len(texts) == len(result.content):
        return "\n".join(texts)
    return {
        "content": [
            block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content
        ]
    }
