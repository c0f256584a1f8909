"""The events of Turns and calls as server-sent events (HTML, "Server-sent events"), from any place on.

The id of an event is its cursor: clients that reconnect send the last one as ``Last-Event-ID``.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import structlog
from pydantic import Field
from starlette.responses import Response

from broker_config import serializer
from goondan_tasks.client import (
    AnswerRestarted,
    AsyncClient,
    FollowedEvent,
    ReasoningDelta,
    TextDelta,
    TokensUsed,
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnEnded,
    TurnProgress,
)
from goondan_tasks.client.reading import Position
from goondan_tasks.contract.errors import GoondanError
from goondan_web.doors.api.operations import Asked, Content
from goondan_web.doors.api.runs import Waits
from goondan_web.doors.api.wire import Query
from goondan_web.event_streams import MEDIA_TYPE, frame, streamed

_log = structlog.get_logger(__name__)

#: after which time a client reconnects
_RETRY = b"retry: 1000\n\n"

STREAMED = Content(
    "The events, each with its `id`, its type as `event`, and its JSON as `data`; `end` is the last one.",
    None,
    MEDIA_TYPE,
    items=(
        TextDelta,
        ReasoningDelta,
        AnswerRestarted,
        ToolCalled,
        ToolEmitted,
        ToolRestarted,
        ToolAnswered,
        TokensUsed,
        TurnProgress,
        TurnEnded,
    ),
)
RESUMING: Mapping[str, Mapping[str, Any]] = {
    "Last-Event-ID": {
        "description": "The id of the last event that came, as browsers send it; before `after`.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,13}-[0-9]{1,3}[.][0-9]{1,3}$"},
    }
}


class Following(Query):
    """From where on to follow."""

    after: str | None = Field(
        None, description="The id of the last event that came. Default: from the beginning."
    )


async def event_stream(client: AsyncClient, waits: Waits, asked: Asked) -> Response:
    """Answer with the events of a Turn or call that is known to exist.

    Raises:
        ToolInputValidationError: the place is none.
    """
    query: Following = asked.query
    after = asked.request.headers.get("last-event-id") or query.after
    Position.of(after)
    return streamed(_frames(client, asked.path["id"], after), waits.over)


async def _frames(client: AsyncClient, run_id: str, after: str | None) -> AsyncGenerator[bytes]:
    """Yield the events until the last one."""
    yield _RETRY
    try:
        async with aclosing(client.follow(run_id, after)) as events:
            async for followed in events:
                yield frame_of(followed)
    except GoondanError as error:  # who reconnects after it gets it as an answer
        _log.info("http.events", call_id=run_id, code=error.code, error=error.message)


def frame_of(followed: FollowedEvent) -> bytes:
    """Return the frame of an event."""
    data = serializer.encode(followed.event.to_wire(), repairs=True)
    return frame(data, event=followed.event.type, event_id=followed.cursor)
