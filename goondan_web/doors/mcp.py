"""The door ``mcp``: agents' tools over streamable HTTP, each agent's at a path of its own."""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecuritySettings
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse
from sse_starlette.sse import AppStatus
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.fleet.http_tokens import CALL
from goondan_tasks.programs.mcp_server import AgentServer
from goondan_web.answers import JSON, RequestError, require_json
from goondan_web.callers import Caller, caller_of, require
from goondan_web.door import Access, Door, DoorContext

PATH = "/mcp"
#: the limit of the events kept for all sessions; the oldest events are dropped first
MOST_BYTES = 64 * 1024 * 1024
#: the size of an event without its message
_OVERHEAD_BYTES = 500
#: the time after which a client with a broken stream reconnects
RETRY_MS = 1_000


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door.

    Raises:
        AgentNotFoundError: no worker or bundle has the agent.
        ConfigError: no agent is named.
    """
    agents = list(dict.fromkeys(context.agents))
    if not agents:
        raise ConfigError("No agent is named for the door mcp.", suggestion="Give --agent A.")
    for agent in agents:
        context.client.catalog(agent)
    client, settings = AsyncClient(context.client), context.settings
    servers = [
        AgentServer(
            client,
            agent,
            instance_key=context.instance,
            help_url=settings.help_url,
            result_ttl_seconds=settings.result_ttl_seconds,
            caller_of=_caller_of,
        )
        for agent in agents
    ]
    yield mcp_door(servers, settings)


def mcp_door(agent_servers: Sequence[AgentServer], settings: Settings) -> Door:
    """Make the door: each agent is at ``/mcp/<agent>``, and the only one at ``/mcp`` too."""
    # otherwise the first signal would end streams before their results
    AppStatus.enable_automatic_graceful_drain = False
    # JSON escapes may be longer than the characters that max_args_bytes counts
    most = max(DEFAULT_MAX_REQUEST_BODY_SIZE, 2 * settings.max_args_bytes)
    memory = EventMemory()
    sessions = {
        one.agent: ResumableSessions(
            memory,
            one.build(),
            max_request_body_size=most,
            # the application's guard checks Host and Origin
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            retry_interval=RETRY_MS,
        )
        for one in agent_servers
    }
    endpoints = {agent: Endpoint(StreamableHTTPASGIApp(some), agent) for agent, some in sessions.items()}
    routes = [Route(f"{PATH}/{agent}", endpoint=endpoint) for agent, endpoint in endpoints.items()]
    if len(endpoints) == 1:
        routes += [Route(PATH, endpoint=endpoint) for endpoint in endpoints.values()]

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for some in sessions.values():
                await running.enter_async_context(some.run())
            yield

    async def end() -> None:
        """Answer the running calls, then end the open streams."""
        await asyncio.gather(*(one.end() for one in agent_servers))
        AppStatus.should_exit = True

    return Door(
        "mcp",
        PATH if len(endpoints) == 1 else f"{PATH}/{{agent}}",
        routes,
        Access.TOKEN,
        max_body_bytes=most,
        lifespan=lifespan,
        end=end,
    )


def _caller_of(request: Any) -> Caller:
    return caller_of(request.scope)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Serves those who may call an agent; a session belongs to the caller and the user who have begun it.

    The SDK refuses some requests in plain text, or without a word; those get the one form of errors.
    """

    app: ASGIApp
    agent: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            MissingScopeError: the caller may not call the agent.
            RequestError: the body is no JSON, or the SDK refuses the request in plain text.
        """
        caller = require(scope, f"{CALL}{self.agent}")
        subject = None if caller.auth is None else serializer.encode(caller.auth).decode()
        # the SDK compares it with that of the session
        principal = AccessToken(token="", client_id=caller.name, scopes=[], subject=subject)
        if scope["method"] == "POST":
            require_json(Headers(scope=scope))
        refusal = _PlainRefusal(send)
        await self.app({**scope, "user": AuthenticatedUser(principal)}, receive, refusal)
        refusal.report()


class _PlainRefusal:
    """Passes answers on, but those that are errors neither in JSON nor as events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self._headers: Headers = Headers()
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            headers = Headers(raw=list(message.get("headers", ())))
            if headers.get("content-type", "").partition(";")[0] not in {JSON, "text/event-stream"}:
                self._status, self._headers = message["status"], headers
        if not self._status:
            await self._send(message)
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")

    def report(self) -> None:
        """Raise the error that was not passed on, if there is one."""
        if self._status:
            text = self._body.decode(errors="replace") or HTTPStatus(self._status).description
            allow = {"Allow": self._headers["allow"]} if "allow" in self._headers else {}
            raise RequestError(f"{text.rstrip('.')}.", status=self._status, headers=allow)


@dataclass(frozen=True, slots=True)
class _Event:
    store: "SessionEvents"
    stream_id: str
    #: ``None`` for the event that opens a stream
    message: JSONRPCMessage | None
    size: int


class EventMemory:
    """The latest events of all sessions, for clients that reconnect (MCP 2025-11-25, basic/transports).

    A client that reconnects with ``Last-Event-ID`` gets the messages it missed, such as a call's result.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self.events: OrderedDict[str, _Event] = OrderedDict()
        self._bytes = 0
        self._numbers = itertools.count(1)

    def add(self, store: "SessionEvents", stream_id: str, message: JSONRPCMessage | None) -> str:
        size = _OVERHEAD_BYTES + (len(message.model_dump_json()) if message is not None else 0)
        event_id = str(next(self._numbers))
        self.events[event_id] = _Event(store, stream_id, message, size)
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, oldest = self.events.popitem(last=False)
            self._bytes -= oldest.size
        return event_id

    def after(self, event_id: str) -> list[tuple[str, _Event]]:
        """Return the events after a stored one."""
        later = itertools.takewhile(lambda other: other != event_id, reversed(self.events))
        return [(later_id, self.events[later_id]) for later_id in reversed(list(later))]


class SessionEvents(EventStore):
    """The events of one session, whose streams are named by request ids, as in other sessions."""

    def __init__(self, memory: EventMemory) -> None:
        self._memory = memory
        self._has_news = asyncio.Event()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._has_news.set()
        self._has_news = asyncio.Event()
        return self._memory.add(self, stream_id, message)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the later events of the same stream; a request's stream ends with the response.

        The SDK would forward new events after the replay, but loses those stored before it begins to
        (mcp/server/streamable_http.py ``_replay_events``). So it gets only the stream without a request.
        """
        last = self._memory.events.get(last_event_id)
        if last is None or last.store is not self or _is_response(last.message):
            return None
        while True:
            has_news = self._has_news
            for event_id, event in self._memory.after(last_event_id):
                last_event_id = event_id
                if event.store is self and event.stream_id == last.stream_id and event.message is not None:
                    await send_callback(EventMessage(event.message, event_id))
                    if _is_response(event.message):
                        return None
            if last.stream_id == GET_STREAM_KEY:
                return last.stream_id
            await has_news.wait()


def _is_response(message: JSONRPCMessage | None) -> bool:
    return isinstance(message, JSONRPCResponse | JSONRPCError)


class ResumableSessions(StreamableHTTPSessionManager):
    """The sessions of a server, with resumable streams."""

    def __init__(self, memory: EventMemory, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._memory = memory

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        # the SDK has one store for all sessions, and passes it only the names of streams
        self.event_store = SessionEvents(self._memory)
        return super()._admit_session(requestor)
