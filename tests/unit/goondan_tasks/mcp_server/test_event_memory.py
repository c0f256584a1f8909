"""What a client that comes back is told."""

import asyncio
from typing import Any

from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from goondan_tasks.mcp_server.event_memory import EventMemory, SessionEvents

NEWS = JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params={})
ANSWER = JSONRPCResponse(jsonrpc="2.0", id=1, result={})


def replayed(store: SessionEvents, last_event_id: str) -> tuple[list[Any], str | None]:
    """Return the messages that come after an event, and the stream that may have more."""
    messages: list[Any] = []

    async def send(event: EventMessage) -> None:
        messages.append(event.message)

    return messages, asyncio.run(store.replay_events_after(last_event_id, send))


def stored(store: SessionEvents, stream: str, message: Any = None) -> str:
    return asyncio.run(store.store_event(stream, message))


def test_events_after_the_last_one_of_the_same_stream_are_replayed() -> None:
    store = SessionEvents(EventMemory())
    first = stored(store, "1")
    stored(store, "2", ANSWER)
    stored(store, "1", NEWS)

    assert replayed(store, first) == ([NEWS], "1")


def test_a_stream_that_has_its_answer_ends_with_it() -> None:
    store = SessionEvents(EventMemory())
    first, second = stored(store, "1"), stored(store, "1", NEWS)
    stored(store, "1", ANSWER)

    assert replayed(store, first) == ([NEWS, ANSWER], None)
    assert replayed(store, second) == ([ANSWER], None)


def test_another_session_is_told_nothing() -> None:
    memory = EventMemory()
    one, other = SessionEvents(memory), SessionEvents(memory)
    first = stored(one, "1")
    stored(other, "1", ANSWER)

    assert replayed(other, first) == ([], None)
    assert replayed(one, first) == ([], "1")


def test_the_oldest_events_are_forgotten_first() -> None:
    store = SessionEvents(EventMemory(most_bytes=1_500))
    first, second = stored(store, "1"), stored(store, "1")
    stored(store, "1", ANSWER)

    assert replayed(store, first) == ([], None)
    assert replayed(store, second) == ([ANSWER], None)


def test_an_event_that_never_was_is_followed_by_nothing() -> None:
    assert replayed(SessionEvents(EventMemory()), "7") == ([], None)
