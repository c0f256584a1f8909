"""ToolCallResults as MCP's CallToolResults, with images, audio and resources.

An output is MCP content if it is a block, a list of blocks, or ``{"content": [blocks]}`` with an optional
object ``structuredContent``. All blocks must be valid (MCP 2025-11-25, server/tools#tool-result), and at
least one must not be text. Any other output is data.
"""

import base64
import re
from typing import Annotated, Any, NamedTuple

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)
from pydantic import Field, TypeAdapter

from broker_config import serializer
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import JsonObject, ToolCallError, ToolCallResult

#: the key of the call's identity in the result's ``_meta``, for `goondan trace` and `goondan output`
CALL_ID = "goondan.ai/callId"
_KINDS = ("text", "image", "audio", "resource", "resource_link")
_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(
    list[Annotated[ContentBlock, Field(discriminator="type")]]
)
#: RFC 6838 §4.2, with parameters
_MIME_TYPE = re.compile(r"[A-Za-z0-9][\w!#$&^.+-]*/[A-Za-z0-9][\w!#$&^.+-]*(\s*;.*)?", re.ASCII)
#: occurs at the beginning of large content
_LARGE = re.compile(r'"(data|blob)":"|"type":"(image|audio|resource|resource_link)"')


class Content(NamedTuple):
    """The content of an output, and its ``structuredContent``."""

    blocks: list[ContentBlock]
    structured: JsonObject | None


def content_of(output: Any) -> Content | None:
    """Read an output as MCP content; ``None`` if it is data."""
    structured = None
    items = [output]
    if isinstance(output, list):
        items = output
    elif isinstance(output, dict) and output.keys() - {"structuredContent"} == {"content"}:
        items, structured = output["content"], output.get("structuredContent")
    if not _may_be_blocks(items) or not isinstance(structured, dict | None):
        return None
    try:
        blocks = _BLOCKS.validate_python(items, by_name=False)
        for block in blocks:
            _require_valid(block)
    except ValueError:
        return None
    return Content(blocks, structured)


def may_begin_content(preview: str) -> bool:
    """Return whether an output may be content, given the beginning of its JSON."""
    return preview.startswith(("{", "[")) and _LARGE.search(preview) is not None


def _may_be_blocks(items: Any) -> bool:
    """Return whether ``items`` looks like a list of blocks of which not all are text."""
    if not isinstance(items, list):
        return False
    are_blocks = all(isinstance(item, dict) and item.get("type") in _KINDS for item in items)
    return are_blocks and any(item["type"] != "text" for item in items)


def _require_valid(block: ContentBlock) -> None:
    """Check the parts of a block that its model does not check.

    Raises:
        ValueError: data is not base64, or a MIME type is not valid.
    """
    mime_type: str | None = None
    if isinstance(block, ImageContent | AudioContent):
        base64.b64decode(block.data, validate=True)
        mime_type = block.mime_type
    elif isinstance(block, EmbeddedResource):
        contents: TextResourceContents | BlobResourceContents = block.resource
        if isinstance(contents, BlobResourceContents):
            base64.b64decode(contents.blob, validate=True)
        mime_type = contents.mime_type
    if mime_type is not None and _MIME_TYPE.fullmatch(mime_type) is None:
        raise ValueError(f"{mime_type!r:.80} is not a MIME type")


def call_tool_result(result: ToolCallResult) -> CallToolResult:
    """Convert a final result.

    Data becomes text, and ``structuredContent`` too if it is an object; content stays as it is. An error
    result has ``isError``, and ``{"error": …}`` as structured content (DESIGN "Records", ToolCallResult).
    """
    meta = {CALL_ID: result.meta.id}
    if result.error is not None:
        return _error_result(result.error, meta)
    content = content_of(result.output)
    if content is not None:
        return CallToolResult(content=content.blocks, structured_content=content.structured, _meta=meta)
    return CallToolResult(
        content=[TextContent(text=_text_of(result))],
        structured_content=result.output if isinstance(result.output, dict) else None,
        _meta=meta,
    )


def refused(error: GoondanError, help_url: str, call_id: str | None = None) -> CallToolResult:
    """Return an error about a call that could not be submitted or, with an id, not be awaited."""
    return _error_result(describe(error, help_url=help_url), {} if call_id is None else {CALL_ID: call_id})


def _error_result(error: ToolCallError, meta: dict[str, Any]) -> CallToolResult:
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
