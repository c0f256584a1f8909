"""The MCP servers of one agent, started together: what the extension ``mcp`` does."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.messages import JsonObject
from goondan_tasks.roster import McpServerRecord
from workers.mcp.board import Board
from workers.mcp.config import HttpServer, StdioServer, read_config
from workers.mcp.connection import OpenTransport, Patience, Transport
from workers.mcp.http import HttpTransport, sent_headers
from workers.mcp.secrets import Secrets
from workers.mcp.server import McpServer
from workers.mcp.stdio import Command, StdioTransport
from workers.mcp.tools import ServerTools


class McpServers:
    """The servers that an agent's config names, each supervised by a task of its own.

    Whether they are stopped or not, their programs end with the process.
    """

    def __init__(self, api: ExtensionApi, board: Board, patience: Patience) -> None:
        self._api = api
        self._board = board
        self._patience = patience
        self._servers: list[tuple[McpServer, ServerTools]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, config: JsonObject) -> None:
        """Start them all, side by side, and wait a while for their tools.

        One that has not come up by then, or at all, is waited for in the background.

        Raises:
            ConfigError: the config is not valid, or a value that it refers to is not there.
        """
        read = read_config(config)
        self._servers = [self._server(name, spec) for name, spec in read.servers.items()]
        self._board.put(self)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(server.supervise()) for server, _ in self._servers]
        settled = [loop.create_task(server.is_settled.wait()) for server, _ in self._servers]
        _, late = await asyncio.wait(settled, timeout=read.start_seconds)
        for waiting in late:
            waiting.cancel()

    async def stop(self) -> None:
        """End each of them as soon as it carries out no call, and wait for that."""
        self._board.remove(self)
        servers = [server for server, _ in self._servers]
        await asyncio.gather(*map(_stop, servers, self._tasks))

    def records(self) -> Iterator[McpServerRecord]:
        """Say how each of them fares."""
        for server, tools in self._servers:
            reason = server.reason
            yield McpServerRecord(
                agent=self._api.agent_name,
                name=server.name,
                is_up=server.is_up,
                tools=len(tools),
                failures=server.failures,
                reason=None if server.is_up else reason,
            )

    def _server(self, name: str, spec: StdioServer | HttpServer) -> tuple[McpServer, ServerTools]:
        secrets = Secrets()
        tools = ServerTools(self._api, name, spec, secrets)
        server = McpServer(
            name,
            self._way_to(name, spec, secrets),
            show=tools.show,
            log=self._api.logger,
            hide=secrets.hide,
            patience=self._patience,
        )
        return server, tools

    def _way_to(self, name: str, spec: StdioServer | HttpServer, secrets: Secrets) -> OpenTransport:
        if isinstance(spec, HttpServer):
            url, headers = secrets.url(spec.url), sent_headers(secrets.texts(spec.headers))
            return lambda _on_end: HttpTransport(url, headers)
        command = Command(
            (spec.command, *secrets.all(spec.args, "args")),
            env=secrets.texts(spec.env),
            cwd=Path(spec.cwd) if spec.cwd else None,
        )
        log = partial(self._log_line, name)

        def open_stdio(on_end: Callable[[], object]) -> Transport:
            return StdioTransport(command, on_end=on_end, on_line=log, hide=secrets.hide)

        return open_stdio

    def _log_line(self, server: str, line: str) -> None:
        self._api.logger.debug("mcp.server_said", server=server, line=line)


async def _stop(server: McpServer, supervision: asyncio.Task[None]) -> None:
    await server.quiet()
    supervision.cancel()
    await asyncio.wait([supervision])
