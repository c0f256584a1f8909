"""One connection to an MCP server, from its start to the end of its life."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Protocol

from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from mcp.client.session import IncomingMessage
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    CallToolResult,
    Implementation,
    Tool,
    ToolListChangedNotification,
)

from goondan_tasks.messages import JsonObject

#: a list that has more pages than this has no end
MOST_PAGES = 100


class Transport(Protocol):
    """What carries the messages of one connection."""

    @property
    def end(self) -> str:
        """How the server ended, if that is known."""

    async def __aenter__(self) -> TransportStreams:
        """Begin."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """End."""


#: makes what carries one connection, and calls back when nothing more will be heard on it
OpenTransport = Callable[[Callable[[], object]], Transport]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for, in seconds."""

    #: until it has told its tools
    connect: float = 30.0
    #: until it gives a sign of life
    answer: float = 10.0
    #: how often it is asked for one, while no call is running
    idle: float = 30.0
    #: at most one look at its tools in this time, however often it says that they have changed
    between_looks: float = 0.1
    #: before it is started again; doubled each time that it did not stay for ``stable``
    first_pause: float = 0.5
    longest_pause: float = 30.0
    stable: float = 30.0
    #: how long nothing must be asked of it before it is ended with its worker
    quiet: float = 0.3


class ServerSilentError(Exception):
    """The server does not answer."""


class Connection:
    """A server's life: it is entered once, tells its tools, and ends with an exception that says why.

    Asking for the tools is the sign of life, too: every version of the protocol has it. The server owes one
    when a call was given up unanswered, when it says that its tools have changed, and now and then while no
    call is running; a server that does one thing at a time may be silent during a call.
    """

    def __init__(self, open_transport: OpenTransport, patience: Patience) -> None:
        self._patience = patience
        self._transport = open_transport(self.doubt)
        self._client = Client(
            self._transport,
            client_info=Implementation(name="goondan-workers", version=version("goondan-workers")),
            message_handler=self._hear,
            cache=None,
        )
        self._is_over = False
        self._calls = 0
        #: set while no call is running
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._look_wanted = asyncio.Event()
        #: whether it must answer though calls are running
        self._is_doubted = False

    async def run(self, show: Callable[[list[Tool]], object]) -> None:
        """Connect, and ``show`` the tools, at once and whenever they may have changed.

        Raises:
            Exception: always; :meth:`reason` puts it into words.
        """
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._patience.connect):
                    await stack.enter_async_context(self._client)
                    tools = await self._tools()
            except TimeoutError as error:
                raise ServerSilentError(f"it was not ready within {self._patience.connect:g} s") from error
            stack.callback(self._leave)
            show(tools)
            stack.push_async_callback(_end, asyncio.get_running_loop().create_task(self._subscribe()))
            while True:
                await self._until_a_look_is_due()
                changed = await self._look()
                if changed is not None:
                    show(changed)

    async def call(self, tool: str, arguments: JsonObject, on_progress: ProgressFnT) -> CallToolResult:
        """Call a tool. When this is cancelled, the server is told.

        Raises:
            MCPError: the server answered with an error, or its life is over.
            RuntimeError, ValueError: its answer is not what the protocol, or the tool's own schema, demands.
        """
        if self._is_over:
            raise MCPError(CONNECTION_CLOSED, "Connection closed")
        self._calls += 1
        self.is_idle.clear()
        try:
            return await self._client.call_tool(tool, arguments, progress_callback=on_progress)
        except (MCPError, asyncio.CancelledError):
            self.doubt()
            raise
        finally:
            self._calls -= 1
            if self._calls == 0:
                self.is_idle.set()

    def doubt(self) -> None:
        """Ask the server for a sign of life, soon."""
        self._is_doubted = True
        self._look_wanted.set()

    def reason(self, error: BaseException | None) -> str:
        """Say why the life is over that ended with ``error``."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            return self._transport.end or error.message
        if isinstance(error, MCPError | ServerSilentError):
            return str(error.args[1] if isinstance(error, MCPError) else error)
        return f"{type(error).__name__}: {error}"

    def _leave(self) -> None:
        self._is_over = True

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._look_wanted.set()

    async def _subscribe(self) -> None:
        """Hear of changes where only those hear who ask: since version 2026-07-28 of the protocol."""
        with contextlib.suppress(MCPError, RuntimeError, TimeoutError):
            async with self._client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._look_wanted.set()
            self._look_wanted.set()

    async def _until_a_look_is_due(self) -> None:
        is_due = False
        while not is_due:
            try:
                async with asyncio.timeout(self._patience.idle):
                    is_due = await self._look_wanted.wait()
            except TimeoutError:
                is_due = self.is_idle.is_set()
        await asyncio.sleep(self._patience.between_looks)
        self._look_wanted.clear()

    async def _look(self) -> list[Tool] | None:
        """Ask for the tools; ``None`` if the server is busy, and may be."""
        try:
            async with asyncio.timeout(self._patience.answer):
                tools = await self._tools()
        except TimeoutError as error:
            if not (self._is_doubted or self.is_idle.is_set()):
                return None
            raise ServerSilentError(f"it did not answer within {self._patience.answer:g} s") from error
        self._is_doubted = False
        return tools

    async def _tools(self) -> list[Tool]:
        try:
            page = await self._client.list_tools()
            tools = page.tools
            for _ in range(MOST_PAGES):
                if page.next_cursor is None:
                    break
                page = await self._client.list_tools(cursor=page.next_cursor)
                tools += page.tools
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return []  # a server without tools
        return tools


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
