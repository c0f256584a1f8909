"""One MCP server: connecting, supervising, and restarting it.

A server that fails takes only its own tools down, until it has been restarted.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from time import monotonic
from typing import Any, Protocol, TypeVar

from mcp import Client, MCPError
from mcp.client._transport import Transport
from mcp.client.session import IncomingMessage
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
    CallToolResult,
    EmptyResult,
    Implementation,
    ToolListChangedNotification,
)

from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.contract.errors import McpError
from goondan_tasks.contract.messages import JsonObject
from workers.mcp.answers import Listing, ToolLists
from workers.mcp.tasks import (
    EXTENSION,
    CancelTask,
    CreatedTask,
    GetTask,
    ServerAwayError,
    TaskCreatedError,
    TaskParams,
    TasksExtension,
    TaskState,
    UnreadableAnswerError,
)
from workers.mcp.tools import Show
from workers.mcp.transports import (
    SESSION_GONE,
    MessageTooLongError,
)


class McpTransport(Transport, Protocol):
    """Carries the messages of one connection."""

    @property
    def end(self) -> str:
        """How the server ended, or an empty string."""


#: makes the transport of one connection, which calls back when its input has ended
OpenTransport = Callable[[Callable[[], object]], McpTransport]


@dataclass(frozen=True, slots=True)
class RestartTimes:
    """Time limits and intervals, in seconds."""

    #: from the start to the list of tools
    connect: float = 30.0
    #: for the answer to a health check
    answer: float = 10.0
    #: between health checks, while no call is running
    idle: float = 30.0
    #: minimum between two reads of the list of tools; it doubles while one change after another is announced
    between_reads: float = 0.1
    longest_between_reads: float = 30.0
    #: before a restart; doubled after each connection that was shorter than ``stable``
    first_pause: float = 0.5
    longest_pause: float = 30.0
    stable: float = 30.0
    #: how long a stopping worker waits for further calls
    quiet: float = 0.3


async def _accept_any(_tool: str, _result: CallToolResult) -> None:
    """Replace the SDK's comparison of an answer with its tool's ``outputSchema``.

    The server chooses both the schema and the answer, and can choose them so that comparing takes hours
    (``^(a|a)*$``). No thread of the worker would run meanwhile, and no time limit would end it.
    """


_FORGOTTEN = "it has forgotten the session"
#: errors about a task that would be the same later: the server does not know it, or no tasks
_REFUSALS = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY})
#: how the SDK describes events that are too long or not valid, with the code of a closed connection
_UNREADABLE_EVENTS = "SSE stream failed"
Answer = TypeVar("Answer", TaskState, EmptyResult)


class SessionGoneError(Exception):
    """The server has forgotten the session, after a restart, for example."""


class ServerSilentError(Exception):
    """The server did not answer in time."""


@dataclass(slots=True)
class ReadPace:
    """The pauses before reads that only the server has asked for.

    A list of a megabyte takes seconds of the event loop, which all calls share, so a server that announces
    changes without end is asked less and less often.
    """

    shortest: float
    longest: float
    _pause: float = 0.0

    def next_pause(self, waited: float) -> float:
        """Return the seconds before a read that is asked for ``waited`` seconds after the last one."""
        is_soon = waited < max(1.0, 2 * self._pause)
        self._pause = max(self.shortest, min(self.longest, 2 * self._pause)) if is_soon else self.shortest
        return self._pause


class Connection:
    """One connection to a server; it always ends with an exception that says why.

    Reading the list of tools doubles as the health check, because every version of the protocol has it. The
    list is read after a call was given up unanswered, after a notification that the tools have changed, and
    at intervals while no call is running: during one, a server without concurrency is silent.
    """

    def __init__(self, open_transport: OpenTransport, patience: RestartTimes, *, takes_tasks: bool) -> None:
        self._patience = patience
        self._takes_tasks = takes_tasks
        self._transport = open_transport(self.doubt)
        self._client = Client(
            self._transport,
            client_info=Implementation(name="goondan-workers", version=version("goondan-workers")),
            message_handler=self._hear,
            cache=None,
            extensions=[TasksExtension()] if takes_tasks else None,
        )
        self._is_over = False
        self._calls = 0
        #: set while no call is running
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._read_wanted = asyncio.Event()
        #: whether it must answer although calls are running
        self._doubted = asyncio.Event()
        self._pace = ReadPace(patience.between_reads, patience.longest_between_reads)
        #: whether the server has forgotten the session
        self.is_forgotten = False

    async def run(self, show: Callable[[Listing], object]) -> None:
        """Connect, and pass the tools to ``show``, at once and whenever they may have changed.

        Raises:
            Exception: always; :meth:`reason` describes it.
        """
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._patience.connect):
                    await stack.enter_async_context(self._client)
                    session: Any = self._client.session  # of type Any, because methods are replaced
                    session.validate_tool_result = _accept_any
                    requests = session._dispatcher
                    self._lists = ToolLists(requests.send_raw_request, lambda: self._client.protocol_version)
                    requests.send_raw_request = self._lists.send
                    tools = await self._tools()
            except TimeoutError as error:
                raise ServerSilentError(f"it was not ready within {self._patience.connect:g} s") from error
            stack.callback(self._leave)
            show(tools)
            stack.push_async_callback(ended, asyncio.get_running_loop().create_task(self._subscribe()))
            while True:
                await self._until_read_is_due()
                changed = None if self.is_forgotten else await self._read()
                if self.is_forgotten:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._patience.answer):
                            await self.is_idle.wait()  # running calls may still be answered
                    raise SessionGoneError(_FORGOTTEN)
                if changed is not None:
                    show(changed)

    async def call(
        self, tool: str, arguments: JsonObject, on_progress: ProgressFnT
    ) -> CallToolResult | CreatedTask:
        """Call a tool. A cancellation is passed on to the server.

        Raises:
            SessionGoneError: the server has forgotten the session, and has not run the call.
            MCPError: the server answered with an error, or the connection is closed.
            RuntimeError, ValueError: the answer violates the protocol.
        """
        if self.is_forgotten:
            raise SessionGoneError(_FORGOTTEN)
        if self._is_over:
            raise MCPError(CONNECTION_CLOSED, "Connection closed")
        self._calls += 1
        self.is_idle.clear()
        try:
            return await self._client.call_tool(tool, arguments, progress_callback=on_progress)
        except TaskCreatedError as created:
            if not self.has_tasks:
                raise ValueError("a task, although it has not declared the extension") from created
            return created.task
        except (MCPError, asyncio.CancelledError) as error:
            self.doubt()
            if isinstance(error, MCPError) and error.code == SESSION_GONE:
                self.is_forgotten = True
                raise SessionGoneError(_FORGOTTEN) from error
            raise
        finally:
            self._calls -= 1
            if self._calls == 0:
                self.is_idle.set()

    @property
    def has_tasks(self) -> bool:
        """Whether the server has declared the extension Tasks, and the client has."""
        return self._takes_tasks and EXTENSION in (self._client.server_capabilities.extensions or {})

    async def ask(self, request: GetTask | CancelTask, answer: type[Answer]) -> Answer:
        """Ask about a task.

        Raises:
            UnreadableAnswerError: the answer cannot be read.
            ServerAwayError: the server cannot answer now.
            McpError: it refuses, or its answer violates the protocol.
        """
        if self.is_forgotten or self._is_over:
            raise ServerAwayError("Connection closed")
        seconds = self._patience.answer
        try:
            return await self._client.session.send_request(
                request, answer, request_read_timeout_seconds=seconds
            )
        except MCPError as error:
            if error.code in _REFUSALS:
                raise McpError(error.message) from error
            if error.code == PARSE_ERROR or error.message.startswith(_UNREADABLE_EVENTS):
                raise UnreadableAnswerError(_without_quotation(error.message)) from error
            self.doubt()
            raise ServerAwayError(error.message) from error
        except (RuntimeError, ValueError) as error:
            raise McpError(f"an answer that is not valid: {error}") from error

    def doubt(self) -> None:
        """Request a health check."""
        self._doubted.set()
        self._read_wanted.set()

    def reason(self, error: BaseException | None) -> str:
        """Describe why the connection ended, given the exception of :meth:`run`."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            return self._transport.end or error.message
        if isinstance(error, MCPError | ServerSilentError | SessionGoneError | MessageTooLongError):
            return str(error.args[1] if isinstance(error, MCPError) else error)
        return f"{type(error).__name__}: {error}"

    def _leave(self) -> None:
        self._is_over = True

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._read_wanted.set()

    async def _subscribe(self) -> None:
        """Subscribe to changes, as the protocol requires since version 2026-07-28."""
        with contextlib.suppress(MCPError, RuntimeError, TimeoutError):
            async with self._client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._read_wanted.set()
            self._read_wanted.set()

    async def _until_read_is_due(self) -> None:
        is_due, began, pause = False, monotonic(), self._patience.between_reads
        while not is_due:
            try:
                async with asyncio.timeout(self._patience.idle):
                    is_due = await self._read_wanted.wait()
            except TimeoutError:
                is_due = self.is_idle.is_set()
        if self._read_wanted.is_set() and not self._doubted.is_set():
            pause = self._pace.next_pause(monotonic() - began)
        if pause > self._patience.between_reads:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._doubted.wait()
        else:
            await asyncio.sleep(pause)
        self._read_wanted.clear()

    async def _read(self) -> Listing | None:
        """Read the list of tools; ``None`` if there was no answer while calls are running."""
        try:
            async with asyncio.timeout(self._patience.answer):
                tools = await self._tools()
        except TimeoutError as error:
            if not (self._doubted.is_set() or self.is_idle.is_set()):
                return None
            raise ServerSilentError(f"it did not answer within {self._patience.answer:g} s") from error
        except MCPError as error:
            if error.code != SESSION_GONE:
                raise
            self.is_forgotten = True
            return None
        self._doubted.clear()
        return tools

    async def _tools(self) -> Listing:
        try:
            return await self._lists.read(lambda cursor: self._client.list_tools(cursor=cursor))
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return Listing()  # a server without tools


def _without_quotation(message: str) -> str:
    """Return the transport's own error about an answer, without what it quotes of it."""
    return message.partition(" [type=")[0]


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])


#: how long a call that was interrupted by the end of the connection waits for the reason
REASON_SECONDS = 3.0
#: how much of an invalid answer's error is shown
_SHOWN_CHARACTERS = 300


class McpServer:
    """A supervised server, on one event loop."""

    def __init__(
        self,
        name: str,
        open_transport: OpenTransport,
        *,
        show: Show,
        log: Logger,
        hide: Callable[[str], str],
        patience: RestartTimes,
        takes_tasks: bool,
    ) -> None:
        """``show`` receives each new list of tools; ``hide`` masks secrets in errors."""
        self.name = name
        #: why it is down
        self.reason = "it has not started yet"
        #: how often it failed, failed starts included
        self.failures = 0
        #: set after the first attempt to start, successful or not
        self.is_settled = asyncio.Event()
        self._open_transport = open_transport
        self._show = show
        self._log = log
        self._hide = hide
        self._patience = patience
        self._takes_tasks = takes_tasks
        self._connection: Connection | None = None
        #: set while it is down
        self._is_down = asyncio.Event()
        #: whether it is connected again at once, because it has forgotten the session
        self._is_renewing = False
        #: set, and replaced, when it has become up or down
        self._has_changed = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether its tools can be called."""
        return self._connection is not None

    @property
    def has_tasks(self) -> bool:
        """Whether it is up, and has declared the extension Tasks."""
        return self._connection is not None and self._connection.has_tasks

    async def supervise(self) -> None:
        """Start the server, and restart it with growing pauses, until cancelled."""
        unstable = 0
        while True:
            began = monotonic()
            reason = await self._run_connection()
            if monotonic() - began > self._patience.stable:
                unstable = 0
            pause = min(self._patience.longest_pause, self._patience.first_pause * 2.0 ** min(unstable, 16))
            if self._is_renewing and not unstable:
                pause = 0.0
            unstable += 1
            self._down(f"{reason}; it is started again in {pause:g} s")
            await asyncio.sleep(pause)

    async def quiet(self) -> None:
        """Wait until no call is running and probably none will follow."""
        await asyncio.sleep(self._patience.quiet)
        if self._connection is not None:
            await self._connection.is_idle.wait()

    async def task(self, task_id: str) -> TaskState:
        """Ask for a task.

        Raises:
            ServerAwayError: the server is down, or does not answer.
            McpError: it does not know the task, or its answer is not valid.
        """
        return await self._asked(GetTask(params=TaskParams(task_id=task_id)), TaskState)

    async def cancel_task(self, task_id: str) -> None:
        """Cancel a task; raises as :meth:`task` does."""
        await self._asked(CancelTask(params=TaskParams(task_id=task_id)), EmptyResult)

    async def _asked(self, request: GetTask | CancelTask, answer: type[Answer]) -> Answer:
        if self._connection is None:
            raise ServerAwayError(self.reason)
        try:
            return await self._connection.ask(request, answer)
        except (McpError, UnreadableAnswerError) as error:
            shown = self._hide(str(error))[:_SHOWN_CHARACTERS]
            raise type(error)(f"MCP server {self.name!r} answered about the task: {shown}") from error

    async def call(
        self, tool: str, arguments: JsonObject, on_progress: ProgressFnT
    ) -> CallToolResult | CreatedTask:
        """Call a tool by the server's own name for it.

        Raises:
            McpError: the server is down, failed during the call, or answered with a protocol error.
        """
        connection = await self._other_than(None)
        try:
            try:
                return await connection.call(tool, arguments, on_progress)
            except SessionGoneError:
                connection = await self._other_than(connection)
                return await connection.call(tool, arguments, on_progress)
        except SessionGoneError as error:
            raise McpError(f"MCP server {self.name!r} did not run the call: {error}, twice.") from error
        except MCPError as error:
            raise McpError(await self._explain(error)) from error
        except (RuntimeError, ValueError) as error:
            shown = self._hide(str(error))[:_SHOWN_CHARACTERS]
            raise McpError(f"MCP server {self.name!r} gave an answer that is not valid: {shown}") from error

    async def _other_than(self, forgotten: Connection | None) -> Connection:
        """Return the connection; one whose session is forgotten is waited for until it is replaced.

        Raises:
            McpError: the server is down.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience.connect):
                while forgotten is not None and self._connection is forgotten:
                    await self._has_changed.wait()
                while self._connection is None and self._is_renewing:
                    await self._has_changed.wait()
        if self._connection is None or self._connection is forgotten:
            raise McpError(f"MCP server {self.name!r} is not running: {self.reason}.")
        return self._connection

    def _note_change(self) -> None:
        self._has_changed.set()
        self._has_changed = asyncio.Event()

    async def _explain(self, error: MCPError) -> str:
        if error.code == CONNECTION_CLOSED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REASON_SECONDS):
                    await self._is_down.wait()
                    return f"MCP server {self.name!r} was lost during the call: {self.reason}."
            return f"MCP server {self.name!r} was lost during the call: {self._hide(error.message)}"
        told = self._hide(error.message)
        if error.code == PARSE_ERROR:
            told = _without_quotation(told)
        return f"MCP server {self.name!r} answered with an error: {told}"

    async def _run_connection(self) -> str:
        """Keep one connection until it ends, and return why it ended."""
        connection = Connection(self._open_transport, self._patience, takes_tasks=self._takes_tasks)
        life = asyncio.get_running_loop().create_task(connection.run(partial(self._up, connection)))
        try:
            await asyncio.wait([life])
        except asyncio.CancelledError:
            self._connection, self.reason = None, "its worker is stopping"
            if not life.cancelling():  # a second cancel would interrupt the clean-up
                life.cancel()
            await asyncio.wait([life])
            raise
        error = None if life.cancelled() else life.exception()
        self._is_renewing = connection.is_forgotten
        return self._hide(connection.reason(error))

    def _up(self, connection: Connection, listing: Listing) -> None:
        self._show(listing, self.call)
        if self._connection is None:
            self._connection = connection
            self._is_down.clear()
            self._is_renewing = False
            self._note_change()
            self._log.info("mcp.server_up", server=self.name)
        self.is_settled.set()

    def _down(self, reason: str) -> None:
        self._connection = None
        self.reason = reason
        self.failures += 1
        self._is_down.set()
        self._note_change()
        self.is_settled.set()
        self._log.warning("mcp.server_down", server=self.name, reason=reason)
