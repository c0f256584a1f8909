"""``goondan mcp-server``: MCP clients list an agent's tools and call them on the agent's workers.

The server speaks both generations of the protocol. Up to 2025-11-25, a connection begins with a handshake and
gets notifications about changed lists. From 2026-07-28 on, requests are independent, and clients subscribe to
changes. Needs the extra ``mcp``; only the command imports this module.
"""

import asyncio
import functools
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Protocol

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ServerEvent,
    SubscriptionBus,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    Tool,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from broker_config.hard_end import END_SECONDS, HardEnd
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.calls import CallFields
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.names import open_telemetry
from goondan_tasks.contract.output import ProgressReport
from goondan_tasks.fleet.http_tokens import APPROVE, READ
from goondan_tasks.programs.mcp_calls import ToolCalls
from goondan_tasks.programs.mcp_tasks import QUICK_SECONDS, Tasks, new_turn, require_declared, takes_tasks

logger = logging.getLogger(__name__)

#: the interval at which a server over stdio looks for its client's process
PARENT_SECONDS = 1.0
#: the interval at which the catalog is read
LOOK_SECONDS = 3.0
PACKAGE = "goondan-workers"
SESSION_HEADER = "mcp-session-id"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Context = ServerRequestContext[None, Any]


class RequestCaller(Protocol):
    """Who sends an HTTP request."""

    @property
    def auth(self) -> JsonObject | None:
        """The ``auth`` of calls."""
        ...

    def may(self, scope: str) -> bool:
        """Return whether something is allowed."""
        ...


#: returns who sends an HTTP request; ``None``: a client that may do everything, as over stdio
CallerOf = Callable[[Any], RequestCaller | None]


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
        result_ttl_seconds: float = 86_400,
        look_seconds: float = LOOK_SECONDS,
        caller_of: CallerOf = lambda _: None,
    ) -> None:
        self._calls = ToolCalls(client, agent, help_url)
        self._tasks = Tasks(
            client,
            agent,
            instance_key,
            result_ttl_seconds,
            self._calls.answer,
            self._may_approve,
            self._may_know,
        )
        self.agent = agent
        self._caller_of = caller_of
        self._instance_key = instance_key
        self._own_session = secrets.token_hex(8)
        self._bus = InMemorySubscriptionBus()
        self._listening = ListenHandler(self._bus)
        self._watch = CatalogWatch(client, agent, self._bus, look_seconds)
        self._notified_sessions: set[str] = set()

    def build(self) -> ChangingServer:
        server = ChangingServer(
            f"goondan-{self.agent}",
            version=version(PACKAGE),
            instructions=f"The tools of the agent {self.agent!r}; they run on its workers.",
            lifespan=self._watching,
            on_list_tools=self._list_tools,
            on_subscriptions_listen=self._listen,
        )
        server.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)
        self._tasks.serve(server)
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

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult | JsonObject:
        async def report(progress: ProgressReport) -> None:
            await ctx.session.report_progress(progress.done, progress.total, progress.message)

        instance_key = self._instance_key or f"mcp-{self._session_of(ctx)}"
        caller = self._caller(ctx)
        self._describe(ctx)
        fields: CallFields = {
            "instance_key": instance_key,
            "origin": _origin(ctx),
            "auth": None if caller is None else caller.auth,
        }
        args = params.arguments or {}
        if takes_tasks(ctx):
            fields["turn_id"] = new_turn()
            answer = await self._calls.run(params.name, args, patience=QUICK_SECONDS, **fields)
        else:
            wants_progress = (ctx.meta or {}).get("progress_token") is not None
            answer = await self._calls.run(params.name, args, report if wants_progress else None, **fields)
        return answer if isinstance(answer, CallToolResult) else await self._tasks.created(answer.id)

    def _describe(self, ctx: Context) -> None:
        """Add to the span of the SDK, which has the method, the tool and the ids of the request."""
        api = open_telemetry()
        if api is not None:
            named = {"mcp.session.id": self._session_of(ctx), "gen_ai.agent.name": self.agent}
            api.get_current_span().set_attributes(named)

    def _may_approve(self, ctx: Context) -> bool:
        caller = self._caller(ctx)
        return caller is None or caller.may(APPROVE)

    def _may_know(self, ctx: Context, call: ToolCall) -> bool:
        caller = self._caller(ctx)
        return caller is None or call.auth == caller.auth or caller.may(READ)

    def _caller(self, ctx: Context) -> RequestCaller | None:
        return None if ctx.request is None else self._caller_of(ctx.request)

    async def _listen(
        self, ctx: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        if "taskIds" in (ctx.params or {}).get("notifications", {}):
            require_declared(ctx)
        return await self._listening(ctx, params)

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
