"""Images that tools return: a model sees them, or is told in which file of the workdir they are."""

import base64
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog

from broker_config import serializer
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import JsonObject, Message
from goondan_tasks.contract.model_messages import StepCallResult, message_of, told_images
from goondan_tasks.contract.tool_images import ToolImage, parts_of
from goondan_tasks.machine.atomic_file import write_whole
from goondan_tasks.machine.inner_path import unresolved
from workers.instances.outputs import read_part

logger = structlog.get_logger(__name__)

#: the largest image that all providers take: 5 MB in base64
MOST_IMAGE_BYTES = 3_700_000
#: the longest side of an image that all providers take (Anthropic)
MOST_PIXELS = 8_000
#: the limits of one request, the size in characters of base64: Anthropic takes 32 MB, and images of more than
#: 2,000 pixels only if there are no more than 20
MOST_IMAGES = 20
MOST_IMAGES_CHARACTERS = 20_000_000
#: how many images beyond the limit are left out at once: what precedes them stays in the provider's cache
LEFT_OUT_AT_ONCE = 10
LEFT_OUT = "left out: a request has the newest images alone"
#: how much of an output in a file is read to look for images
MOST_OUTPUT_BYTES = 16 * 1024 * 1024
#: where images are stored that the model cannot see
DIRECTORY = "images"


def needs_files(result: StepCallResult) -> bool:
    """Return whether :func:`seen_message` may read or write files for a result: then it blocks."""
    return result.meta.output_file is not None or parts_of(result.output) is not None


def seen_message(result: StepCallResult, turn_id: str, workdir: Path, *, takes_images: bool) -> Message:
    """Return the Message with a call's result, whose images the model can see or finds in the workdir.

    An output that was too large for the result is read from its file if it holds images.
    """
    message = message_of(result, turn_id)
    parts = _parts(result, workdir) if result.status == "ok" else None
    if parts is None:
        return message
    [part] = message.data["content"]
    blocks = [
        _block(one, number, result.meta.id, workdir, takes_images=takes_images)
        for number, one in enumerate(parts, 1)
    ]
    shown = {**part, "output": {"type": "content", "value": blocks}}
    return message.model_copy(update={"data": {**message.data, "content": [shown]}})


def _parts(result: StepCallResult, workdir: Path) -> list[str | ToolImage] | None:
    path = result.meta.output_file
    if path is None:
        return parts_of(result.output)
    try:
        data, size = read_part(workdir, path, offset=0, limit=MOST_OUTPUT_BYTES)
        return parts_of(serializer.decode(data)) if size <= MOST_OUTPUT_BYTES else None
    except (GoondanError, OSError, serializer.NotJsonError) as error:
        logger.warning("output.not_read", path=path, reason=str(error))
        return None


def _block(
    part: str | ToolImage, number: int, call_id: str, workdir: Path, *, takes_images: bool
) -> JsonObject:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if takes_images and part.size <= MOST_IMAGE_BYTES and part.longest_side <= MOST_PIXELS:
        return {"type": "image", "data": part.data, "mimeType": part.media_type}
    name = f"{call_id}-{number}{part.ending}"
    try:
        with unresolved(workdir, (DIRECTORY,), DIRECTORY).open_directory(make=True) as directory:
            write_whole(name, base64.b64decode(part.data), directory=directory)
    except (GoondanError, OSError) as error:
        logger.warning("image.not_stored", path=f"{DIRECTORY}/{name}", reason=str(error))
        return {"type": "text", "text": part.note}
    return {"type": "text", "text": f"{part.note} in the file {DIRECTORY}/{name}"}


def with_newest_images(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Return messages with as many images of tools as providers take; notes replace the oldest."""
    given = list(messages)
    sizes = [len(one.data) for message in given for part in _results(message) for one in _images(part)]
    over = max(0, len(sizes) - MOST_IMAGES)
    left_out = -(-over // LEFT_OUT_AT_ONCE) * LEFT_OUT_AT_ONCE
    while sum(sizes[left_out:]) > MOST_IMAGES_CHARACTERS:
        left_out += 1
    if not left_out:
        return given
    numbers = itertools.count()
    return [
        {**message, "content": [_with_notes(part, numbers, left_out) for part in message["content"]]}
        if _results(message)
        else message
        for message in given
    ]


def _with_notes(part: JsonObject, numbers: Iterator[int], left_out: int) -> JsonObject:
    """Return a part with notes for the images whose numbers are below ``left_out``."""
    told = told_images(part.get("output")) if part.get("type") == "tool-result" else None
    if told is None:
        return part
    blocks: list[JsonObject] = []
    for one in told:
        if isinstance(one, str):
            blocks.append({"type": "text", "text": one})
        elif next(numbers) < left_out:
            blocks.append({"type": "text", "text": f"{one.note} {LEFT_OUT}"})
        else:
            blocks.append({"type": "image", "data": one.data, "mimeType": one.media_type})
    return {**part, "output": {"type": "content", "value": blocks}}


def _results(message: JsonObject) -> list[JsonObject]:
    content = message.get("content")
    is_result = message.get("role") == "tool" and isinstance(content, list)
    return [part for part in content or () if part.get("type") == "tool-result"] if is_result else []


def _images(part: JsonObject) -> list[ToolImage]:
    return [one for one in told_images(part.get("output")) or () if isinstance(one, ToolImage)]
