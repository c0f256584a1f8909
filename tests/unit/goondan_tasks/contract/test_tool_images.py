"""Images in the outputs of tools."""

import base64
import struct
from typing import Any

import pytest

from goondan_tasks.contract.model_messages import told_images, told_text
from goondan_tasks.contract.tool_images import ToolImage, parts_of


def encoded(beginning: bytes) -> str:
    return base64.b64encode(beginning + bytes(3_000)).decode()


PNG = encoded(b"\x89PNG\r\n\x1a\n")
IMAGE = ToolImage("image/png", PNG)
TEXT = {"type": "text", "text": "the page"}
MCP = {"type": "image", "data": PNG, "mimeType": "image/png"}


@pytest.mark.parametrize(
    "output",
    [
        {"content": [TEXT, MCP]},
        {"content": [TEXT, MCP], "structuredContent": {"title": "a"}, "isError": False},
        {"type": "content", "value": [TEXT, {"type": "media", "data": PNG, "mediaType": "image/png"}]},
        [TEXT, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}],
        [TEXT, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}],
    ],
)
def test_images_of_every_format_are_found_in_order(output: Any) -> None:
    assert parts_of(output) == ["the page", IMAGE]


@pytest.mark.parametrize(
    ("beginning", "media_type"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_type_of_image_is_read_from_its_bytes(beginning: bytes, media_type: str) -> None:
    image = {"type": "image", "data": encoded(beginning), "mimeType": "image/png"}
    assert parts_of([image]) == [ToolImage(media_type, encoded(beginning))]


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 300, 9_000),
        b"GIF89a" + struct.pack("<HH", 9_000, 300),
        b"\xff\xd8\xff\xe0"
        + struct.pack(">H", 4)
        + b"xx"
        + b"\xff\xc2"
        + struct.pack(">HBHH", 17, 8, 9_000, 300),
        b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (8_999).to_bytes(3, "little") + (299).to_bytes(3, "little"),
        b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + struct.pack("<I", 8_999 | 299 << 14),
        b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 300, 9_000),
    ],
)
def test_longest_side_is_read_from_header(data: bytes) -> None:
    [image] = parts_of([{"type": "image", "data": base64.b64encode(data).decode()}]) or []
    assert isinstance(image, ToolImage)
    assert image.longest_side == 9_000


@pytest.mark.parametrize(
    "beginning", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\0\0\0\0WEBP"]
)
def test_side_of_damaged_image_is_not_known(beginning: bytes) -> None:
    assert ToolImage("image/png", base64.b64encode(beginning).decode()).longest_side == 0


@pytest.mark.parametrize(
    "output",
    [
        None,
        "text",
        [],
        [1, MCP],
        {"content": "text"},
        {"content": [TEXT]},
        {"content": [MCP], "more": 1},
        [{"type": "image", "data": "not base64!", "mimeType": "image/png"}],
        [{"type": "image", "data": PNG[:-3], "mimeType": "image/png"}],
        [{"type": "image", "data": encoded(b"<svg>"), "mimeType": "image/svg+xml"}],
        [{"type": "image", "data": 5}],
        [{"type": ["image"], "data": PNG}],
    ],
)
def test_output_without_usable_image_has_no_parts(output: Any) -> None:
    assert parts_of(output) is None


def test_notes_stand_for_images_where_only_text_can() -> None:
    audio = {"type": "audio", "data": "QUJD", "mimeType": "audio/mpeg"}
    output = {"type": "json", "value": {"content": [TEXT, MCP, audio]}}
    note = '{"type":"audio","data":"…","mimeType":"audio/mpeg"}'
    assert told_text(output) == (f"the page\n[image/png, 2 KiB]\n{note}", False)
    assert told_images(output) == ["the page", IMAGE, note]


def test_error_with_image_is_text() -> None:
    output = {"type": "error-json", "value": {"content": [MCP]}}
    assert told_images(output) is None
