"""The MCP servers of one agent, each supervised by its own task."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from goondan_tasks.authoring.extension_api import ExtensionApi
from goondan_tasks.contract.errors import McpError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.fleet.agent_registry import McpServerRecord
from workers.mcp import Board
from workers.mcp.config import HttpServer, Secrets, StdioServer, read_config
from workers.mcp.servers import McpServer, McpTransport, OpenTransport, RestartTimes, ended
from workers.mcp.suspended import RemoteTask
from workers.mcp.tasks import RemoteTasks, TaskServer
from workers.mcp.tools import ServerTools
from workers.mcp.transports import Command, HttpTransport, StdioTransport, sent_headers


def _refuse(task: RemoteTask) -> None:
    raise McpError(f"MCP server {task.server!r} answered with a task, which it was not asked for.")


class McpServers:
    """The servers in an agent's config, each supervised by its own task.

    Their programs end with this process at the latest.
    """

    def __init__(self, api: ExtensionApi, board: Board, patience: RestartTimes) -> None:
        self._api = api
        self._board = board
        self._patience = patience
        self._servers: list[tuple[McpServer, ServerTools]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._task_servers: dict[str, TaskServer] = {}
        self._remote: RemoteTasks | None = None
        if board.suspended is not None:
            self._remote = RemoteTasks(api.agent_name, self._task_servers, board.suspended, api.logger)
        self._polling: asyncio.Task[None] | None = None

    async def start(self, config: JsonObject) -> None:
        """Start all servers concurrently, and wait up to ``startSeconds`` for their tools.

        Servers that are not ready by then continue to start in the background.

        Raises:
            ConfigError: the config is not valid, or a value that it refers to is missing.
        """
        read = read_config(config)
        self._servers = [self._server(name, spec) for name, spec in read.servers.items()]
        self._board.put(self)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(server.supervise()) for server, _ in self._servers]
        if self._remote is not None and self._task_servers:
            self._polling = loop.create_task(self._remote.run())
        settled = [loop.create_task(server.is_settled.wait()) for server, _ in self._servers]
        _, late = await asyncio.wait(settled, timeout=read.start_seconds)
        for waiting in late:
            waiting.cancel()

    async def stop(self) -> None:
        """Stop each server as soon as it has no running call, and wait for its end."""
        self._board.remove(self)
        if self._polling is not None:
            await ended(self._polling)

        async def stop(server: McpServer, supervision: asyncio.Task[None]) -> None:
            await server.quiet()
            await ended(supervision)

        await asyncio.gather(*map(stop, (server for server, _ in self._servers), self._tasks))

    def records(self) -> Iterator[McpServerRecord]:
        """Return the status of each server."""
        for server, tools in self._servers:
            reason = server.reason  # before is_up, which another thread may change
            yield McpServerRecord(
                agent=self._api.agent_name,
                name=server.name,
                is_up=server.is_up,
                tools=len(tools),
                left_out=tools.left_out,
                failures=server.failures,
                reason=None if server.is_up else reason,
            )

    def _server(self, name: str, spec: StdioServer | HttpServer) -> tuple[McpServer, ServerTools]:
        secrets = Secrets()
        takes_tasks = spec.tasks and self._remote is not None
        on_task = _refuse if self._remote is None else self._remote.note
        tools = ServerTools(self._api, name, spec, secrets, on_task)
        server = McpServer(
            name,
            self._transport_of(name, spec, secrets),
            show=tools.show,
            log=self._api.logger,
            hide=secrets.hide,
            patience=self._patience,
            takes_tasks=takes_tasks,
        )
        if takes_tasks:
            self._task_servers[name] = TaskServer(server, tools.output, secrets.hide)
        return server, tools

    def _transport_of(self, name: str, spec: StdioServer | HttpServer, secrets: Secrets) -> OpenTransport:
        if isinstance(spec, HttpServer):
            url, headers = secrets.url(spec.url), sent_headers(secrets.texts(spec.headers))
            return lambda _on_end: HttpTransport(url, headers)
        command = Command(
            (spec.command, *secrets.all(spec.args, "args")),
            env=secrets.texts(spec.env),
            cwd=Path(spec.cwd) if spec.cwd else None,
        )

        def log(line: str) -> None:
            self._api.logger.debug("mcp.server_said", server=name, line=line)

        def open_stdio(on_end: Callable[[], object]) -> McpTransport:
            return StdioTransport(command, on_end=on_end, on_line=log, hide=secrets.hide)

        return open_stdio
