"""Server-sent events of a Turn: frames, the place where they begin, and how a stream ends."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from goondan_tasks.client import AsyncClient, FollowedEvent, TextDelta
from goondan_tasks.contract.errors import CallNotFoundError, ToolInputValidationError
from goondan_web.doors.api import events
from goondan_web.doors.api.events import Following, event_stream, frame_of
from goondan_web.doors.api.operations import Asked
from goondan_web.doors.api.runs import Waits
from goondan_web.event_streams import streamed


class Followed:
    """A client that follows what a test puts into ``coming``; ``None`` is the end."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[FollowedEvent | Exception | None] = asyncio.Queue()
        self.after: str | None = None
        self.is_left = False

    async def follow(self, run_id: str, after: str | None = None) -> AsyncIterator[FollowedEvent]:
        self.after = after
        try:
            while (one := await self.coming.get()) is not None:
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:
            self.is_left = True


def delta(text: str, cursor: str) -> FollowedEvent:
    return FollowedEvent(TextDelta(step=0, text=text), cursor)


def asked(after: str | None = None, last_event_id: str | None = None) -> Asked:
    headers = [] if last_event_id is None else [(b"last-event-id", last_event_id.encode())]
    request = Request({"type": "http", "method": "GET", "headers": headers})
    return Asked(request, {"id": "t-1"}, Following(after=after), None)


async def stream(client: Followed, waits: Waits, question: Asked) -> AsyncIterator[bytes]:
    answer = await event_stream(cast(AsyncClient, client), waits, question)
    assert isinstance(answer, StreamingResponse)
    async for frame in answer.body_iterator:
        yield cast(bytes, frame)


def waits_of(client: Followed) -> Waits:
    return Waits(cast(AsyncClient, client))


def test_event_is_one_frame_whatever_its_text() -> None:
    assert (
        frame_of(delta("a\n\r\u2028ü", "1-0.1"))
        == (
            'id: 1-0.1\nevent: text\ndata: {"type":"text","step":0,"text":"a\\n\\r\u2028ü","answerId":""}\n\n'
        ).encode()
    )


@pytest.mark.parametrize(
    ("question", "after"),
    [(asked(), None), (asked("5-0.1"), "5-0.1"), (asked("5-0.1", "7-0.2"), "7-0.2")],
)
def test_stream_begins_after_last_event_that_came(question: Asked, after: str | None) -> None:
    async def run() -> list[bytes]:
        client = Followed()
        client.coming.put_nowait(delta("a", "8-0.1"))
        client.coming.put_nowait(None)
        frames = [frame async for frame in stream(client, waits_of(client), question)]
        assert (client.after, client.is_left) == (after, True)
        return frames

    assert asyncio.run(run()) == [b"retry: 1000\n\n", frame_of(delta("a", "8-0.1"))]


def test_invalid_cursor_is_refused_before_stream_begins() -> None:
    client = Followed()

    with pytest.raises(ToolInputValidationError, match="cursor"):
        asyncio.run(event_stream(cast(AsyncClient, client), waits_of(client), asked("x")))


def test_silent_stream_gets_comments_until_server_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "streamed", partial(streamed, quiet_seconds=0.01))

    async def run() -> list[bytes]:
        client = Followed()
        waits, frames = waits_of(client), list[bytes]()
        async for frame in stream(client, waits, asked()):
            frames.append(frame)
            if len(frames) == 3:
                await waits.end()
        assert client.is_left
        return frames

    assert asyncio.run(run())[:3] == [b"retry: 1000\n\n", b":\n\n", b":\n\n"]


def test_client_that_leaves_ends_following() -> None:
    async def run() -> bool:
        client = Followed()
        frames: Any = stream(client, waits_of(client), asked())
        client.coming.put_nowait(delta("a", "1-0.1"))
        await anext(frames)
        await anext(frames)
        reading = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return client.is_left

    assert asyncio.run(run())


def test_error_in_begun_stream_ends_it() -> None:
    async def run() -> list[bytes]:
        client = Followed()
        client.coming.put_nowait(CallNotFoundError())
        return [frame async for frame in stream(client, waits_of(client), asked())]

    assert asyncio.run(run()) == [b"retry: 1000\n\n"]
