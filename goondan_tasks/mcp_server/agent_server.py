"""An MCP server whose tools are an agent's: one for stdio, or one for all sessions over HTTP.

It speaks both ages of the protocol, as the SDK does: up to 2025-11-25 a connection begins with a handshake
and is told of changed lists; from 2026-07-28 on each request stands alone, and clients listen for changes.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ServerEvent
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from goondan_tasks.client import AsyncClient
from goondan_tasks.errors import GoondanError
from goondan_tasks.mcp_server.catalog_watch import LOOK_SECONDS, CatalogWatch
from goondan_tasks.mcp_server.tool_calls import ToolCalls
from goondan_tasks.messages import JsonObject
from goondan_tasks.progress import ProgressReport

Context = ServerRequestContext[None, Any]

PACKAGE = "goondan-workers"
SESSION_HEADER = "mcp-session-id"


class ChangingServer(Server[None]):
    """A server that says to every client that its list of tools may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Describe the server; over HTTP the SDK asks for it without options."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class AgentServer:
    """What MCP clients may ask of one agent.

    Every MCP session works in an instance of its own, unless ``instance_key`` names one for all. Where the
    protocol has no sessions (stdio, and HTTP from 2026-07-28 on) all requests share the server's instance.
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
        self._told: set[str] = set()

    def build(self) -> ChangingServer:
        """Make the SDK's server."""
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
            "notifications/initialized", NotificationParams, self._tell_of_changes
        )
        return server

    async def end(self) -> None:
        """Cancel what clients wait for, and end the streams of those who listen: the process is to end."""
        self._listening.close()
        await self._calls.cancel_all()

    @asynccontextmanager
    async def _watching(self, _: Server[None]) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            # before anybody is served: what changes once a client listens is told
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

    async def _tell_of_changes(self, ctx: Context, _: NotificationParams) -> None:
        """Send list_changed whenever the catalog has changed; ends with the connection, which cancels it."""
        session = self._session_of(ctx)
        if session in self._told:
            return
        changed = asyncio.Event()

        def note(_: ServerEvent) -> None:
            changed.set()

        unsubscribe = self._bus.subscribe(note)
        self._told.add(session)
        try:
            while True:
                await changed.wait()
                changed.clear()
                await ctx.session.send_tool_list_changed()
        finally:
            self._told.discard(session)
            unsubscribe()

    def _session_of(self, ctx: Context) -> str:
        # where there are no sessions, such a header would be a name of the client's own choice
        if ctx.request is None or ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return self._own_session
        session: str = ctx.request.headers.get(SESSION_HEADER, self._own_session)
        return session


def _origin(ctx: Context) -> JsonObject:
    """Say where a call comes from (001 §9.1.1, turn.origin)."""
    who = ctx.session.client_params
    if who is None:
        return {"connector": "mcp"}
    return {"connector": "mcp", "client": {"name": who.client_info.name, "version": who.client_info.version}}
