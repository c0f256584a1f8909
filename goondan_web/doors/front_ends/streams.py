"""Runs as streams of a protocol's events."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from starlette.responses import StreamingResponse
from starlette.routing import Route

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client.reading import Position
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_web.door import MAX_HISTORY_BYTES, Access, Door
from goondan_web.doors.front_ends.runs import RunEvent
from goondan_web.event_streams import QUIET_SECONDS, frame, streamed


class Mapper(Protocol):
    """The events of a protocol for those of one run."""

    def begun(self) -> JsonObject:
        """Return the first one."""
        ...

    def mapped(self, one: RunEvent) -> Iterator[JsonObject]:
        """Return those for an event of the run."""
        ...

    def failed(self, error: ToolCallError) -> JsonObject:
        """Return the last one of a run that cannot be followed any more."""
        ...


class Streams:
    """The answers that stream runs; they end with the server, and the runs go on."""

    def __init__(self, help_url: str, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._help_url = help_url
        self._quiet_seconds = quiet_seconds
        self._over = asyncio.Event()

    async def end(self) -> None:
        """End all answers."""
        self._over.set()

    def answer(
        self,
        events: AsyncGenerator[RunEvent],
        mapper: Mapper,
        after: Position | None = None,
        *,
        last: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> StreamingResponse:
        """Answer with the events of a run, those after a place; ``last`` ends the stream."""
        chunks = self._chunks(events, mapper, after, last)
        return streamed(chunks, self._over, quiet_seconds=self._quiet_seconds, headers=headers)

    async def _chunks(
        self, events: AsyncGenerator[RunEvent], mapper: Mapper, after: Position | None, last: bytes
    ) -> AsyncGenerator[bytes]:
        yield _sent(mapper.begun())
        try:
            async with aclosing(events):
                async for one in events:
                    is_new = after is None or one.place is None or one.place > after
                    mapped = list(mapper.mapped(one))
                    if is_new and mapped:
                        yield b"".join(map(_sent, mapped[:-1])) + _sent(mapped[-1], one.place)
        except GoondanError as error:
            described = describe(error, help_url=self._help_url, default=type(error))
            yield _sent(mapper.failed(described))
        if last:
            yield last


def front_end_door(
    name: str, path: str, routes: Sequence[Route], streams: Streams, settings: Settings
) -> Door:
    """Make a door for pages, whose answers are streams."""
    return Door(
        name,
        path,
        routes,
        Access.TOKEN,
        max_body_bytes=MAX_HISTORY_BYTES + settings.max_args_bytes,
        end=streams.end,
        is_for_pages=True,
    )


def _sent(event: JsonObject, place: Position | None = None) -> bytes:
    """Return an event of the stream, with the place that the page has reached."""
    return frame(serializer.encode(event, repairs=True), event_id=None if place is None else place.cursor)
