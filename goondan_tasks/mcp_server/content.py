"""MCP content in a tool's output: images, audio and resources reach an MCP client as what they are.

An output counts as content if it is a block, a list of blocks, or ``{"content": [blocks]}`` with nothing
beside it but an object as ``structuredContent``. Every block has to be valid (MCP 2025-11-25,
server/tools#tool-result), and at least one has to be something else than text. Any other output is data.
"""

import base64
import re
from typing import Annotated, Any, NamedTuple

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextResourceContents,
)
from pydantic import Field, TypeAdapter

from goondan_tasks.messages import JsonObject

_KINDS = ("text", "image", "audio", "resource", "resource_link")
_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(
    list[Annotated[ContentBlock, Field(discriminator="type")]]
)
#: RFC 6838, §4.2, and parameters
_MIME_TYPE = re.compile(r"[A-Za-z0-9][\w!#$&^.+-]*/[A-Za-z0-9][\w!#$&^.+-]*(\s*;.*)?", re.ASCII)
#: what the beginning of content that is large looks like
_LARGE = re.compile(r'"(data|blob)":"|"type":"(image|audio|resource|resource_link)"')


class Content(NamedTuple):
    """The content of an output, and what stands beside it."""

    blocks: list[ContentBlock]
    structured: JsonObject | None


def content_of(output: Any) -> Content | None:
    """Return the content that an output is, or ``None`` if it is data."""
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
    """Say whether an output of which this is the beginning, as JSON, is worth a look at the whole."""
    return preview.startswith(("{", "[")) and _LARGE.search(preview) is not None


def _may_be_blocks(items: Any) -> bool:
    """Say whether these are called blocks, and not all text."""
    if not isinstance(items, list):
        return False
    are_blocks = all(isinstance(item, dict) and item.get("type") in _KINDS for item in items)
    return are_blocks and any(item["type"] != "text" for item in items)


def _require_valid(block: ContentBlock) -> None:
    """Check what a block's types leave open.

    Raises:
        ValueError: data is not base64, or a MIME type is none.
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
