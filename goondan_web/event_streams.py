"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), sent by several doors.

A stream sends a comment now and then while nothing happens, and ends with the server; what it tells of goes
on.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

MEDIA_TYPE = "text/event-stream"
#: after so many seconds without an event a comment is sent: proxies keep the connection, and it shows whether
#: the client is still there
QUIET_SECONDS = 15.0
#: proxies such as nginx would collect the events
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMENT = b":\n\n"


class EventStream(StreamingResponse):
    """Server-sent events. The answer to HEAD has no body, and begins nothing: it would last as long."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["method"] != "HEAD":
            return await super().__call__(scope, receive, send)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b""})
        return None


def frame(data: bytes, *, event: str | None = None, event_id: str | None = None) -> bytes:
    """Return an event of a stream; lines of ``data`` end with LF."""
    head = "" if event_id is None else f"id: {event_id}\n"
    if event is not None:
        head += f"event: {event}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data.replace(b"\n", b"\ndata: "))


def streamed(
    frames: AsyncGenerator[bytes],
    over: asyncio.Event,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    headers: dict[str, str] | None = None,
) -> EventStream:
    """Answer with frames until there are no more, or until ``over`` is set."""

    async def body() -> AsyncGenerator[bytes]:
        async with aclosing(until(over, frames, quiet_seconds)) as some:
            async for one in some:
                yield _COMMENT if one is None else one

    return EventStream(body(), headers={**HEADERS, **(headers or {})}, media_type=MEDIA_TYPE)


async def until(
    over: asyncio.Event, items: AsyncGenerator[T], quiet_seconds: float | None = None
) -> AsyncGenerator[T | None]:
    """Yield items until ``over`` is set, and ``None`` after so many seconds without one.

    The generator of the items is closed then.
    """
    ending: asyncio.Future[Any] = asyncio.ensure_future(over.wait())
    coming: asyncio.Future[Any] | None = None
    try:
        while not ending.done():
            coming = coming or asyncio.ensure_future(_next(items))
            await asyncio.wait({ending, coming}, timeout=quiet_seconds, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                item, coming = coming.result(), None
                if item is None:
                    return
                yield item
            elif not ending.done():
                yield None
    finally:
        ending.cancel()
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)  # the generator must rest to be closed
        await items.aclose()


async def _next(items: AsyncGenerator[T]) -> T | None:
    return await anext(items, None)
