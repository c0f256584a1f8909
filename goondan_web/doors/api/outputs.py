"""Outputs and files by byte range (RFC 9110 §14). An output never changes, so its id is its validator."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse

from goondan_tasks.client import AsyncClient, OutputPart
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_web.answers import JSON, RequestError

#: how long a worker may take to read a part of a large output, in seconds
PATIENCE = 30.0
#: no output and no file is as long, in bytes
_FARTHEST = 10**12
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE | re.ASCII)

RANGE: Mapping[str, Mapping[str, Any]] = {
    "Range": {
        "description": "One range, such as `bytes=0-1023` or `bytes=-500`; several are answered with all.",
        "schema": {"type": "string", "pattern": "^bytes=[0-9]{1,6}-[0-9]{0,6}$"},
    },
    "If-Range": {
        "description": "The ETag of the output that the range is of.",
        "schema": {"type": "string", "pattern": '^"[!-~]{1,40}"$'},
    },
}


class RangeError(RequestError):
    """There are no bytes in this range."""

    suggestion = "Ask for a range within the size that Content-Range names."
    status = 416


class Part(Protocol):
    """A part of a text or file."""

    @property
    def data(self) -> bytes:
        """Its bytes."""
        ...

    @property
    def offset(self) -> int:
        """Where they begin."""
        ...

    @property
    def size(self) -> int:
        """How many the whole has."""
        ...


#: reads at most so many bytes from an offset on; raises ToolInputValidationError past the end
Read = Callable[[int, int | None], Awaitable[Part]]


@dataclass(frozen=True, slots=True)
class Source:
    """What is read in parts, and what does not change unless its ``etag`` does."""

    read: Read
    etag: str
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = JSON


async def output_answer(client: AsyncClient, call_id: str, headers: Headers) -> Response:
    """Answer with an output, or the range of it that is asked for.

    Raises:
        NoOutputError, CallNotFoundError, OutputGoneError, WaitTimeout: as ``client.read_output``.
        RangeError: there are no such bytes.
    """

    async def read(offset: int, limit: int | None) -> OutputPart:
        return await client.read_output(call_id, offset, limit, timeout=PATIENCE)

    return await ranged_answer(Source(read, f'"{call_id}"'), headers)


async def ranged_answer(source: Source, headers: Headers) -> Response:
    """Answer with all of it, or the range that is asked for.

    Raises:
        RangeError: there are no such bytes.
    """
    asked = _RANGE.fullmatch(headers.get("range", "").strip())
    is_of_this = headers.get("if-range", source.etag).strip() == source.etag
    begin, end = (None, None) if asked is None or not is_of_this else _numbers(asked)
    if begin is None and end is None:
        part = await source.read(0, None)
        return _streamed(source, part, part.size, 200, _described(source, 0, part.size))
    begin, part = await _first(source, begin, end)
    last = part.size if end is None else min(part.size, end)
    shown = {"Content-Range": f"bytes {begin}-{last - 1}/{part.size}"}
    return _streamed(source, part, last, 206, _described(source, begin, last) | shown)


def _numbers(asked: re.Match[str]) -> tuple[int | None, int | None]:
    """Return where a range begins and ends; a negative beginning counts from the end of the output.

    A range that is not valid is as none (RFC 9110 §14.2).

    Raises:
        RangeError: it has no bytes.
    """
    first, last = asked.groups()
    if last and not first and not int(last):
        raise RangeError("A range of the last 0 bytes has none.")
    if not first:
        return (-int(last), None) if last else (None, None)
    if last and int(last) < int(first):
        return None, None
    return int(first), min(int(last) + 1, _FARTHEST) if last else None


async def _first(source: Source, begin: int | None, end: int | None) -> tuple[int, Part]:
    """Return where the range begins, and the first part of it."""
    begin = begin or 0
    if begin < 0:
        begin = max(0, (await source.read(0, 1)).size + begin)
    try:
        part = await source.read(begin, None if end is None else end - begin)
    except ToolInputValidationError as error:
        raise _outside((await source.read(0, 1)).size) from error
    if not part.data:
        raise _outside(part.size)
    return begin, part


def _outside(size: int) -> RangeError:
    return RangeError(
        f"There are {size} bytes, and none in this range.", headers={"Content-Range": f"bytes */{size}"}
    )


def _described(source: Source, begin: int, end: int) -> dict[str, str]:
    own = {"ETag": source.etag, "Accept-Ranges": "bytes", "Content-Length": str(end - begin)}
    return {**source.headers, **own}


def _streamed(source: Source, first: Part, end: int, status: int, headers: Mapping[str, str]) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        part = first
        yield part.data[: end - part.offset]
        while (following := part.offset + len(part.data)) < end:
            part = await source.read(following, end - following)
            if not part.data:
                raise RangeError("It was cut while it was read.")
            yield part.data[: end - part.offset]

    return StreamingResponse(parts(), status, headers, source.media_type)
