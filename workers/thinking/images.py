"""Images that tools return: a model sees them, or is told in which file of the workdir they are."""

import base64
from pathlib import Path

import structlog

from broker_config import serializer
from goondan_tasks.atomic_file import write_whole
from goondan_tasks.errors import GoondanError
from goondan_tasks.inner_path import unresolved
from goondan_tasks.messages import JsonObject, Message
from goondan_tasks.model_messages import StepCallResult, message_of
from goondan_tasks.tool_images import ToolImage, parts_of
from workers.instances.outputs import read_part

logger = structlog.get_logger(__name__)

#: the largest image that all providers take: 5 MB in base64
MOST_IMAGE_BYTES = 3_700_000
#: how much of an output in a file is read to look for images
MOST_OUTPUT_BYTES = 16 * 1024 * 1024
#: where images are stored that the model cannot see
DIRECTORY = "images"


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
    if takes_images and part.size <= MOST_IMAGE_BYTES:
        return {"type": "image", "data": part.data, "mimeType": part.media_type}
    name = f"{call_id}-{number}{part.ending}"
    try:
        with unresolved(workdir, (DIRECTORY,), DIRECTORY).open_directory(make=True) as directory:
            write_whole(name, base64.b64decode(part.data), directory=directory)
    except (GoondanError, OSError) as error:
        logger.warning("image.not_stored", path=f"{DIRECTORY}/{name}", reason=str(error))
        return {"type": "text", "text": part.note}
    return {"type": "text", "text": f"{part.note} in the file {DIRECTORY}/{name}"}
