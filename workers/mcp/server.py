"""One MCP server, kept connected: what befalls it costs its own tools, for a while, and nothing else."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic

from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, CallToolResult, Tool

from goondan_tasks.errors import McpError
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import Logger
from workers.mcp.connection import Connection, OpenTransport, Patience

#: a call that was running when the connection broke waits this long to learn why it did
LAST_WORDS_SECONDS = 3.0
#: how much is told of an answer that is not valid
_SHOWN_CHARACTERS = 300


Call = Callable[[str, JsonObject, ProgressFnT], Awaitable[CallToolResult]]
#: takes each list of a server's tools, and how they are called
Show = Callable[[list[Tool], Call], object]


class McpServer:
    """A server under supervision, on one event loop."""

    def __init__(
        self,
        name: str,
        open_transport: OpenTransport,
        *,
        show: Show,
        log: Logger,
        hide: Callable[[str], str],
        patience: Patience,
    ) -> None:
        """``show`` gets each list of its tools; ``hide`` takes secrets out of what is told of it."""
        self.name = name
        #: why it is down
        self.reason = "it has not started yet"
        #: how often it was lost, or did not start
        self.failures = 0
        #: set once the first attempt to start has ended, well or badly
        self.is_settled = asyncio.Event()
        self._open_transport = open_transport
        self._show = show
        self._log = log
        self._hide = hide
        self._patience = patience
        self._connection: Connection | None = None
        #: set while it is down
        self._is_down = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether its tools can be called."""
        return self._connection is not None

    async def supervise(self) -> None:
        """Start it, and start it again after each end, with growing pauses, until cancelled."""
        unstable = 0
        while True:
            began = monotonic()
            reason = await self._one_life()
            if monotonic() - began > self._patience.stable:
                unstable = 0
            pause = min(self._patience.longest_pause, self._patience.first_pause * 2.0 ** min(unstable, 16))
            unstable += 1
            self._down(f"{reason}; it is started again in {pause:g} s")
            await asyncio.sleep(pause)

    async def quiet(self) -> None:
        """Wait until it has no call to carry out, and probably will have none."""
        await asyncio.sleep(self._patience.quiet)
        if self._connection is not None:
            await self._connection.is_idle.wait()

    async def call(self, tool: str, arguments: JsonObject, on_progress: ProgressFnT) -> CallToolResult:
        """Call one of its tools, by the server's own name for it.

        Raises:
            McpError: it is down, was lost during the call, or answered with an error of the protocol.
        """
        connection = self._connection
        if connection is None:
            raise McpError(f"MCP server {self.name!r} is not running: {self.reason}.")
        try:
            return await connection.call(tool, arguments, on_progress)
        except MCPError as error:
            raise McpError(await self._explain(error)) from error
        except (RuntimeError, ValueError) as error:
            shown = self._hide(str(error))[:_SHOWN_CHARACTERS]
            raise McpError(f"MCP server {self.name!r} gave an answer that is not valid: {shown}") from error

    async def _explain(self, error: MCPError) -> str:
        if error.code == CONNECTION_CLOSED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._is_down.wait()
                    return f"MCP server {self.name!r} was lost during the call: {self.reason}."
        told = self._hide(error.message)
        if error.code == PARSE_ERROR:  # of the transport's; the rest is what the server sent
            told = told.partition(" [type=")[0]
        return f"MCP server {self.name!r} answered with an error: {told}"

    async def _one_life(self) -> str:
        """Let it live, and return why it does no more."""
        connection = Connection(self._open_transport, self._patience)
        life = asyncio.get_running_loop().create_task(connection.run(partial(self._up, connection)))
        try:
            await asyncio.wait([life])
        except asyncio.CancelledError:
            self._connection, self.reason = None, "its worker stops"
            if not life.cancelling():  # a second time would disturb how it ends
                life.cancel()
            await asyncio.wait([life])
            raise
        return self._hide(connection.reason(None if life.cancelled() else life.exception()))

    def _up(self, connection: Connection, tools: list[Tool]) -> None:
        self._show(tools, self.call)
        if self._connection is None:
            self._connection = connection
            self._is_down.clear()
            self._log.info("mcp.server_up", server=self.name)
        self.is_settled.set()

    def _down(self, reason: str) -> None:
        self._connection = None
        self.reason = reason
        self.failures += 1
        self._is_down.set()
        self.is_settled.set()
        self._log.warning("mcp.server_down", server=self.name, reason=reason)
