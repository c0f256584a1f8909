"""``goondan mcp-server``: MCP clients list an agent's tools and call them on the agent's workers.

The server speaks both generations of the protocol. Up to 2025-11-25, a connection begins with a handshake and
gets notifications about changed lists. From 2026-07-28 on, requests are independent, and clients subscribe to
changes. Needs the extra ``mcp``; only the command imports this module.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import secrets
import signal
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Unpack

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ServerEvent,
    SubscriptionBus,
    ToolsListChanged,
)
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    Tool,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from sse_starlette.sse import AppStatus
from starlette.applications import Starlette
from starlette.routing import Route

from broker_config import serializer
from broker_config.connections import reporting_outages
from broker_config.hard_end import HardEnd
from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient, AsyncPendingCall
from goondan_tasks.contract.calls import CallFields
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog
from goondan_tasks.contract.errors import BrokerUnreachableError, GoondanError, WaitTimeout
from goondan_tasks.contract.mcp_content import call_tool_result, content_of, may_begin_content, refused
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.output import ProgressReport
from goondan_tasks.programs.http import END_SECONDS, HttpGuard, guarded

logger = logging.getLogger(__name__)

#: the interval at which the progress of a call is read
PROGRESS_SECONDS = 0.5
#: the limit of sending a cancel, and of the time until a cancelled call has ended
CANCEL_SECONDS = 5.0
#: how long Redis may be away before a waiting client gets an error: clients might repeat the call, which
#: goes on
OUTAGE_SECONDS = 60.0
PAUSE_SECONDS = 0.5
#: the interval at which a server over stdio looks for its client's process
PARENT_SECONDS = 1.0
#: the largest content that is read from a file
CONTENT_BYTES = 16 * 1024 * 1024
#: the limit for each part of it
READ_SECONDS = 30.0
#: the interval at which the catalog is read
LOOK_SECONDS = 3.0
#: the limit of the events kept for all sessions; the oldest events are dropped first
MOST_BYTES = 64 * 1024 * 1024
#: the size of an event without its message
_OVERHEAD_BYTES = 500
PACKAGE = "goondan-workers"
PATH = "/mcp"
SESSION_HEADER = "mcp-session-id"
#: the time after which a client with a broken stream reconnects
RETRY_MS = 1_000
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Context = ServerRequestContext[None, Any]
Report = Callable[[ProgressReport], Awaitable[None]]


class ToolCalls:
    """Runs calls on the workers of one agent."""

    def __init__(self, client: AsyncClient, agent: str, help_url: str) -> None:
        self._client = client
        self._agent = agent
        self._help_url = help_url
        self._waiting: set[str] = set()
        #: how many calls are not answered; those that are being submitted have no id yet
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._is_closing = False

    async def run(
        self, tool: str, args: Any, report: Report | None = None, **fields: Unpack[CallFields]
    ) -> CallToolResult:
        """Submit a call and wait for its final result, even if it becomes pending.

        ``report`` gets the progress. Cancelling this cancels the call.
        """
        call_id = None
        self._unanswered += 1
        self._all_answered.clear()
        try:
            # shielded, since cancelling the call needs its id
            with anyio.CancelScope(shield=True):
                call = await self._client.submit(self._agent, tool, args, **fields)
            call_id = call.id
            self._waiting.add(call_id)
            return call_tool_result(await self._with_content(await self._followed(call, report)))
        except GoondanError as error:
            return refused(error, self._help_url, call_id)
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._all_answered.set()

    async def cancel_all(self) -> None:
        """Cancel all running and future calls, and wait until they are answered.

        This takes at most a few times :data:`CANCEL_SECONDS`.
        """
        self._is_closing = True
        await asyncio.gather(*(self._cancel(call_id) for call_id in self._waiting))
        with anyio.move_on_after(CANCEL_SECONDS):
            await self._all_answered.wait()

    async def _followed(self, call: AsyncPendingCall, report: Report | None) -> ToolCallResult:
        try:
            if self._is_closing:
                await self._cancel(call.id)
            with reporting_outages():
                return await _final(call, report)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._cancel(call.id)
            raise
        finally:
            self._waiting.discard(call.id)

    async def _with_content(self, result: ToolCallResult) -> ToolCallResult:
        """Return a result with its whole output, if that is content stored in a file."""
        if result.meta.output_file is None or not isinstance(result.output, dict):
            return result
        if result.output["size"] > CONTENT_BYTES or not may_begin_content(result.output["preview"]):
            return result
        try:
            output = serializer.decode(await self._whole_output(result.meta.id))
        except (GoondanError, serializer.NotJsonError):
            return result  # it has the beginning of the output and the name of its file
        return result.model_copy(update={"output": output}) if content_of(output) is not None else result

    async def _whole_output(self, call_id: str) -> bytes:
        data = bytearray()
        offset: int | None = 0
        while offset is not None:
            part = await self._client.read_output(call_id, offset, timeout=READ_SECONDS)
            data += part.data
            offset = part.next_offset
        return bytes(data)

    async def _cancel(self, call_id: str) -> None:
        with anyio.move_on_after(CANCEL_SECONDS), contextlib.suppress(GoondanError):
            await self._client.cancel(call_id)


async def _final(call: AsyncPendingCall, report: Report | None) -> ToolCallResult:
    """Wait for the final result, also during an outage of Redis.

    ``report`` gets only increasing progress, as MCP requires.
    """
    reported, result, progress = -1.0, None, None
    while True:
        try:
            with contextlib.suppress(WaitTimeout):
                result = await call.result(None if report is None else PROGRESS_SECONDS, wait_pending=True)
            if report is not None:
                progress = await call.progress()
        except BrokerUnreachableError:
            await _until_back(call)
            continue
        if report is not None and progress is not None:
            for latest in (*progress.earlier, progress):
                if latest.done > reported:
                    reported = latest.done
                    await report(latest)
        if result is not None:
            return result


async def _until_back(call: AsyncPendingCall) -> None:
    """Wait until Redis answers again.

    Raises:
        BrokerUnreachableError: it does not within :data:`OUTAGE_SECONDS`.
    """
    end = time.monotonic() + OUTAGE_SECONDS
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        try:
            await call.status()
        except BrokerUnreachableError:
            if time.monotonic() >= end:
                raise
        else:
            return


class CatalogWatch:
    def __init__(
        self, client: AsyncClient, agent: str, bus: SubscriptionBus, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._client = client
        self._agent = agent
        self._bus = bus
        self._look_seconds = look_seconds
        self._known: list[Tool] | None = None

    async def tools(self) -> list[Tool]:
        """Read the catalog.

        Raises:
            AgentNotFoundError: no worker or bundle has the agent any more.
            BrokerUnreachableError: Redis cannot be reached.
        """
        await self._client.agents()  # refreshes the client's cache
        items = [CatalogItem.from_wire(item) for item in await self._client.catalog(self._agent)]
        # in MCP arguments are objects, even if the schema allows other types
        return [
            Tool.model_validate({**tool, "inputSchema": {**tool["inputSchema"], "type": "object"}})
            for tool in ToolCatalog(tuple(items)).to_mcp()
        ]

    async def look(self) -> None:
        """Read the catalog and publish a change if it differs from the previous one."""
        before = self._known
        try:
            self._known = await self.tools()
        except GoondanError as error:
            logger.warning("the catalog of agent %s cannot be read: %s", self._agent, error)
        if before is not None and self._known != before:
            logger.info("the catalog of agent %s has changed", self._agent)
            await self._bus.publish(ToolsListChanged())

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        while True:
            await anyio.sleep(self._look_seconds)
            await self.look()


class ChangingServer(Server[None]):
    """A server that tells every client that its list of tools may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Describe the server; over HTTP the SDK passes no options."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class AgentServer:
    """Serves one agent's tools to MCP clients.

    Every MCP session has an instance of its own, unless ``instance_key`` names one for all. Without sessions
    (stdio, and HTTP from 2026-07-28 on) all requests share the server's instance.
    """

    def __init__(
        self,
        client: AsyncClient,
        agent: str,
        *,
        instance_key: str | None = None,
        help_url: str = "",
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._calls = ToolCalls(client, agent, help_url)
        self._agent = agent
        self._instance_key = instance_key
        self._own_session = secrets.token_hex(8)
        self._bus = InMemorySubscriptionBus()
        self._listening = ListenHandler(self._bus)
        self._watch = CatalogWatch(client, agent, self._bus, look_seconds)
        self._notified_sessions: set[str] = set()

    def build(self) -> ChangingServer:
        server = ChangingServer(
            f"goondan-{self._agent}",
            version=version(PACKAGE),
            instructions=f"The tools of the agent {self._agent!r}; they run on its workers.",
            lifespan=self._watching,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listening,
        )
        server.add_notification_handler(
            "notifications/initialized", NotificationParams, self._notify_of_changes
        )
        return server

    async def end(self) -> None:
        """Cancel the running calls and end the clients' subscriptions, before the process ends."""
        self._listening.close()
        await self._calls.cancel_all()

    @asynccontextmanager
    async def _watching(self, _: Server[None]) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            # before any client is served, so that every later change is noticed
            await self._watch.look()
            tasks.start_soon(self._watch.run)
            yield
            tasks.cancel_scope.cancel()

    async def _list_tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        try:
            return ListToolsResult(tools=await self._watch.tools())
        except GoondanError as error:
            raise MCPError(INTERNAL_ERROR, f"{error.code}: {error}") from error

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        async def report(progress: ProgressReport) -> None:
            await ctx.session.report_progress(progress.done, progress.total, progress.message)

        return await self._calls.run(
            params.name,
            params.arguments or {},
            report if (ctx.meta or {}).get("progress_token") is not None else None,
            instance_key=f"mcp-{self._session_of(ctx)}" if self._instance_key is None else self._instance_key,
            origin=_origin(ctx),
        )

    async def _notify_of_changes(self, ctx: Context, _: NotificationParams) -> None:
        """Send list_changed after each change of the catalog, until the connection's end cancels this."""
        session = self._session_of(ctx)
        if session in self._notified_sessions:
            return
        changed = asyncio.Event()

        def note(_: ServerEvent) -> None:
            changed.set()

        unsubscribe = self._bus.subscribe(note)
        self._notified_sessions.add(session)
        try:
            while True:
                await changed.wait()
                changed.clear()
                await ctx.session.send_tool_list_changed()
        finally:
            self._notified_sessions.discard(session)
            unsubscribe()

    def _session_of(self, ctx: Context) -> str:
        # without sessions the client itself has chosen the header
        if ctx.request is None or ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return self._own_session
        session: str = ctx.request.headers.get(SESSION_HEADER, self._own_session)
        return session


def _origin(ctx: Context) -> JsonObject:
    """Return the origin of a call (001 §9.1.1, turn.origin)."""
    if ctx.session.client_params is None:
        return {"connector": "mcp"}
    client = ctx.session.client_params.client_info
    return {"connector": "mcp", "client": {"name": client.name, "version": client.version}}


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

    @functools.cached_property
    def _memory(self) -> EventMemory:
        return EventMemory()

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        # the SDK has one store for all sessions, and passes it only the names of streams
        self.event_store = SessionEvents(self._memory)
        return super()._admit_session(requestor)


def make_app(agent_server: AgentServer, settings: Settings, host: str) -> HttpGuard:
    """Make the application to be served on ``host``.

    Raises:
        ConfigError: other machines can reach it, and no token is set.
    """
    # otherwise the first signal would end streams before their results
    AppStatus.enable_automatic_graceful_drain = False
    sessions = ResumableSessions(
        agent_server.build(),
        # JSON escapes may be longer than the characters that max_args_bytes counts
        max_request_body_size=max(DEFAULT_MAX_REQUEST_BODY_SIZE, 2 * settings.max_args_bytes),
        # our guard checks Host and Origin
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        retry_interval=RETRY_MS,
    )
    app = Starlette(
        routes=[Route(PATH, endpoint=StreamableHTTPASGIApp(sessions))], lifespan=lambda _: sessions.run()
    )
    return guarded(app, settings, host)


async def end(agent_server: AgentServer) -> None:
    """Answer the running calls, then end the open streams."""
    await agent_server.end()
    AppStatus.should_exit = True


def serve_stdio(agent_server: AgentServer) -> None:
    """Serve one client until it closes stdin or ends, then cancel its running calls.

    stdout is for the protocol; other output of this process goes to stderr.
    """
    asyncio.run(_serve_stdio(agent_server))


async def _serve_stdio(agent_server: AgentServer) -> None:
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []
    hard_end = HardEnd()
    hard_end.start()

    def on_signal(number: int) -> None:
        hard_end.within(END_SECONDS)
        if not ending:
            ending.append(loop.create_task(_exit(agent_server, number)))

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    orphaned = loop.create_task(_when_orphaned(os.getppid(), functools.partial(on_signal, signal.SIGHUP)))
    server = agent_server.build()
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
    orphaned.cancel()


async def _when_orphaned(parent: int, end: Callable[[], None]) -> None:
    """Call ``end`` once the process that started this one has ended.

    A client that is killed closes no input if another process of it holds the pipe, too.
    """
    while True:
        await anyio.sleep(PARENT_SECONDS)
        if os.getppid() != parent:
            break
    logger.info("the client has ended")
    end()


async def _exit(agent_server: AgentServer, number: int) -> None:
    await agent_server.end()
    # a normal exit would wait for the thread that is blocked reading stdin
    os._exit(128 + number)
