"""The MCP servers of one agent, started together: what the extension ``mcp`` does."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mcp_types import Tool

from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.messages import JsonObject
from goondan_tasks.roster import McpServerRecord
from workers.mcp.board import Board
from workers.mcp.config import HttpServer, StdioServer, read_config
from workers.mcp.connection import OpenTransport, Patience, Transport
from workers.mcp.http import HttpTransport
from workers.mcp.secrets import Secrets
from workers.mcp.server import McpServer
from workers.mcp.stdio import Command, StdioTransport
from workers.mcp.tools import ServerTools


class McpServers:
    """The servers that an agent's config names, each supervised by a task of its own."""

    def __init__(self, api: ExtensionApi, board: Board, patience: Patience) -> None:
        self._api = api
        self._board = board
        self._patience = patience
        self._servers: list[McpServer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, config: JsonObject) -> None:
        """Start them all, side by side, and wait a while for their tools.

        One that has not come up by then, or at all, is waited for in the background.

        Raises:
            ConfigError: the config is not valid, or a value that it refers to is not there.
        """
        read = read_config(config)
        self._servers = [self._server(name, spec) for name, spec in read.servers.items()]
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(server.supervise()) for server in self._servers]
        settled = [loop.create_task(server.is_settled.wait()) for server in self._servers]
        _, late = await asyncio.wait(settled, timeout=read.start_seconds)
        for waiting in late:
            waiting.cancel()

    async def stop(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            self._board.take_down(self._api.agent_name, server.name)

    def _server(self, name: str, spec: StdioServer | HttpServer) -> McpServer:
        secrets = Secrets()
        tools = ServerTools(self._api, name, spec)

        def post() -> None:
            self._board.post(self._record(server, tools))

        def show(listed: list[Tool]) -> None:
            tools.show(listed, server.call)
            post()

        def tell() -> None:
            post()
            self._log_change(server)

        server = McpServer(
            name,
            self._way_to(name, spec, secrets),
            show=show,
            on_change=tell,
            hide=secrets.hide,
            patience=self._patience,
        )
        post()
        return server

    def _way_to(self, name: str, spec: StdioServer | HttpServer, secrets: Secrets) -> OpenTransport:
        if isinstance(spec, HttpServer):
            headers = secrets.texts(spec.headers)
            return lambda _on_end: HttpTransport(spec.url, headers)
        command = Command(
            (spec.command, *secrets.all(spec.args, "args")),
            env=secrets.texts(spec.env),
            cwd=Path(spec.cwd) if spec.cwd else None,
        )
        log = partial(self._log_line, name, secrets)

        def open_stdio(on_end: Callable[[], object]) -> Transport:
            return StdioTransport(command, on_end=on_end, on_line=log)

        return open_stdio

    def _log_line(self, server: str, secrets: Secrets, line: str) -> None:
        self._api.logger.debug("mcp.server_said", server=server, line=secrets.hide(line))

    def _log_change(self, server: McpServer) -> None:
        if server.is_up:
            self._api.logger.info("mcp.server_up", server=server.name)
        else:
            self._api.logger.warning("mcp.server_down", server=server.name, reason=server.reason)

    def _record(self, server: McpServer, tools: ServerTools) -> McpServerRecord:
        return McpServerRecord(
            agent=self._api.agent_name,
            name=server.name,
            is_up=server.is_up,
            tools=len(tools),
            failures=server.failures,
            reason=None if server.is_up else server.reason,
        )
