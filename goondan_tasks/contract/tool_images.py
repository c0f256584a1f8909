"""Images in the outputs of tools, which models look at.

Read are the content blocks of MCP, as servers and handlers return them (``{"content": [{"type": "image",
"data", "mimeType"}, …]}``), and those of the AI SDK and of Anthropic, in a list or as ``{"type": "content",
"value": […]}``.
"""

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from broker_config import serializer

#: by how a file of the type begins; providers check it
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_ENDINGS = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
#: the fields of blocks that hold files in base64
_FILES = ("data", "blob")
#: the markers of frames: SOF0 to SOF15, but DHT, JPG and DAC
_JPEG_FRAMES = {0xFFC0 + number for number in range(16)} - {0xFFC4, 0xFFC8, 0xFFCC}
#: what a tool gives besides its content, which should repeat it
_REPEATED = frozenset({"content", "structuredContent", "isError", "_meta"})


class ToolImage(NamedTuple):
    """An image in base64, of one of the types that providers accept."""

    media_type: str
    data: str

    @property
    def size(self) -> int:
        """The number of its bytes."""
        return len(self.data) * 3 // 4

    @property
    def longest_side(self) -> int:
        """Its width or height in pixels, whichever is larger; 0 if it cannot be read."""
        return max(_sides(_decoded(self.data)))

    @property
    def ending(self) -> str:
        """The ending of a file's name: ``.png``."""
        return _ENDINGS[self.media_type]

    @property
    def note(self) -> str:
        """What stands in its place where only text can."""
        return f"[{self.media_type}, {max(1, self.size // 1024)} KiB]"


def parts_of(output: Any) -> list[str | ToolImage] | None:
    """Return the texts and images of a tool's output in their order, ``None`` if it holds no image."""
    blocks = _blocks(output)
    if not blocks or not all(isinstance(one, Mapping) and isinstance(one.get("type"), str) for one in blocks):
        return None
    parts = list(map(_part, blocks))
    structured = output.get("structuredContent") if isinstance(output, Mapping) else None
    if structured and not any(
        isinstance(part, str) for part in parts
    ):  # a server repeats it as a text, or not
        parts.append(serializer.encode(structured).decode())
    return parts if any(isinstance(part, ToolImage) for part in parts) else None


def _blocks(output: Any) -> list[Any] | None:
    if isinstance(output, Mapping):
        is_typed = output.get("type") == "content" and output.keys() == {"type", "value"}
        content = output.get("value") if is_typed else output.get("content")
        return content if isinstance(content, list) and (is_typed or output.keys() <= _REPEATED) else None
    return output if isinstance(output, list) else None


def _part(block: Mapping[str, Any]) -> str | ToolImage:
    if block["type"] == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    for data in _sources(block):
        if (image := _image(data)) is not None:
            return image
    shown = {name: "…" if name in _FILES else value for name, value in block.items()}
    return serializer.encode(shown).decode()


def _sources(block: Mapping[str, Any]) -> Iterator[str]:
    """Yield what may be an image in base64."""
    source = block.get("source")
    url = block.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    for found in (block.get("data"), source.get("data") if isinstance(source, Mapping) else None, url):
        if isinstance(found, str):
            yield found.partition(";base64,")[2] if found.startswith("data:image/") else found


def _image(data: str) -> ToolImage | None:
    beginning = _decoded(data[:16])
    media_type = next((kind for start, kind in _BEGINNINGS.items() if beginning.startswith(start)), None)
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        media_type = "image/webp"
    return ToolImage(media_type, data) if media_type is not None and _decoded(data) else None


def _sides(data: bytes) -> tuple[int, ...]:
    """Read width and height from the header of an image; zeros if it is damaged."""
    try:
        if data.startswith(b"\x89PNG"):
            return struct.unpack_from(">II", data, 16)
        if data.startswith(b"GIF8"):
            return struct.unpack_from("<HH", data, 6)
        return _sides_of_jpeg(data) if data.startswith(b"\xff\xd8") else _sides_of_webp(data)
    except struct.error:
        return 0, 0


def _sides_of_jpeg(data: bytes) -> tuple[int, ...]:
    """Look for the frame among the segments (ITU T.81, B.1.1)."""
    place = 2
    while data[place : place + 1] == b"\xff":
        marker, length = struct.unpack_from(">HH", data, place)
        if marker in _JPEG_FRAMES:
            return struct.unpack_from(">HH", data, place + 5)
        place += 2 + length
    return 0, 0


def _sides_of_webp(data: bytes) -> tuple[int, ...]:
    """Read the first chunk (RFC 9649): lossy, lossless or extended."""
    kind = data[12:16]
    if kind == b"VP8X":
        return tuple(1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return tuple(side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return b""
