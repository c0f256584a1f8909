"""What was sent over HTTP lately, for clients whose connection broke (MCP 2025-11-25, basic/transports).

A client that comes back with ``Last-Event-ID`` is told what it has missed: the result of a call that went on.
"""

import functools
import itertools
from collections import OrderedDict
from dataclasses import dataclass

from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.streamable_http import (
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

#: of all sessions together; the oldest events are forgotten first
MOST_BYTES = 64 * 1024 * 1024
#: what an event takes beside its message
_OVERHEAD_BYTES = 500


@dataclass(frozen=True, slots=True)
class _Event:
    store: "SessionEvents"
    stream_id: str
    #: ``None`` for the event that opens a stream
    message: JSONRPCMessage | None
    size: int


class EventMemory:
    """The latest events of all sessions, within a number of bytes."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._events: OrderedDict[str, _Event] = OrderedDict()
        self._bytes = 0
        self._numbers = itertools.count(1)

    def add(self, store: "SessionEvents", stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event, and return its id."""
        size = _OVERHEAD_BYTES + (len(message.model_dump_json()) if message is not None else 0)
        event_id = str(next(self._numbers))
        self._events[event_id] = _Event(store, stream_id, message, size)
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, forgotten = self._events.popitem(last=False)
            self._bytes -= forgotten.size
        return event_id

    def get(self, event_id: str) -> _Event | None:
        """Return an event, unless it is forgotten."""
        return self._events.get(event_id)

    def after(self, event_id: str) -> list[tuple[str, _Event]]:
        """Return the events since one that is there."""
        later = itertools.takewhile(lambda known: known != event_id, reversed(self._events))
        return [(known, self._events[known]) for known in reversed(list(later))]


class SessionEvents(EventStore):
    """The events of one session, whose streams are named by request ids that other sessions use as well."""

    def __init__(self, memory: EventMemory) -> None:
        self._memory = memory

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event, and return its id."""
        return self._memory.add(self, stream_id, message)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came later in the same stream; return the stream if more may come."""
        last = self._memory.get(last_event_id)
        if last is None or last.store is not self:
            return None
        for event_id, event in self._memory.after(last_event_id):
            if event.store is self and event.stream_id == last.stream_id and event.message is not None:
                await send_callback(EventMessage(event.message, event_id))
                if isinstance(event.message, JSONRPCResponse | JSONRPCError):
                    return None
        return last.stream_id


class ResumableSessions(StreamableHTTPSessionManager):
    """The sessions of a server, whose streams can be taken up again."""

    @functools.cached_property
    def _memory(self) -> EventMemory:
        return EventMemory()

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        # the SDK gives one store to all sessions, and tells it only the names of streams
        self.event_store = SessionEvents(self._memory)
        return super()._admit_session(requestor)
