"""A ToolCallResult as MCP's CallToolResult."""

from typing import Any

from mcp_types import CallToolResult, TextContent

from broker_config import serializer
from goondan_tasks.errors import GoondanError
from goondan_tasks.failure import describe
from goondan_tasks.mcp_server.content import content_of
from goondan_tasks.messages import ToolCallError, ToolCallResult

#: the call's identity, in the result's ``_meta``: `goondan trace` and `goondan output` take it
CALL_ID = "goondan.ai/callId"


def call_tool_result(result: ToolCallResult) -> CallToolResult:
    """Write a final result.

    The output stands as text, and in ``structuredContent`` too if it is an object; content
    (:mod:`goondan_tasks.mcp_server.content`) stands as it is. An error has ``isError`` and stands there as
    ``{"error": …}`` (DESIGN "Records", ToolCallResult).
    """
    meta = {CALL_ID: result.meta.id}
    if result.error is not None:
        return _failed(result.error, meta)
    content = content_of(result.output)
    if content is not None:
        return CallToolResult(content=content.blocks, structured_content=content.structured, _meta=meta)
    return CallToolResult(
        content=[TextContent(text=_text_of(result))],
        structured_content=result.output if isinstance(result.output, dict) else None,
        _meta=meta,
    )


def refused(error: GoondanError, help_url: str, call_id: str | None = None) -> CallToolResult:
    """Write why a call was not submitted, or, if it has an id, why nobody can say how it goes on."""
    return _failed(describe(error, help_url=help_url), {} if call_id is None else {CALL_ID: call_id})


def _failed(error: ToolCallError, meta: dict[str, Any]) -> CallToolResult:
    lines = [f"{error.code}: {error.message}", error.suggestion, error.help_url]
    return CallToolResult(
        content=[TextContent(text="\n".join(line for line in lines if line))],
        structured_content={"error": error.to_wire()},
        is_error=True,
        _meta=meta,
    )


def _text_of(result: ToolCallResult) -> str:
    text = result.output if isinstance(result.output, str) else serializer.encode(result.output).decode()
    if result.meta.output_file is None:
        return text
    return f"{text}\nThe whole output is in the file {result.meta.output_file} of the tools' workdir."
