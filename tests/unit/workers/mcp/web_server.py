"""An MCP server of the official SDK at a loopback address, which may go away and come back."""

import asyncio
import socket
import threading
from typing import Any, Self

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.middleware.gzip import GZipMiddleware

from tests.waiting import wait_until

SECONDS = 20.0


class WebServer:
    """The server in a thread of its own: tools ``headers``, ``hang``, ``learn`` and what it has learnt."""

    def __init__(self, port: int = 0, *, answers_json: bool = False) -> None:
        """``answers_json``: answer with JSON, compressed if the client accepts it, and not with events."""
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        #: the headers of the last call of ``headers``
        self.seen: dict[str, str] = {}
        app = _mcp(self.seen).streamable_http_app(json_response=answers_json)
        if answers_json:
            app.add_middleware(GZipMiddleware)
        self._uvicorn = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=0))
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._uvicorn.started, SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = True
        self._thread.join()
        self._socket.close()


def _mcp(seen: dict[str, str]) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("web")

    @server.tool()
    def headers(ctx: Context) -> dict[str, str]:
        """Return the headers of the request."""
        request = ctx.request_context.request
        assert request is not None
        seen.update(request.headers)
        return dict(request.headers)

    @server.tool()
    def nested(depth: int) -> dict[str, Any]:
        """Return lists in lists."""
        deep: Any = 0
        for _ in range(depth):
            deep = [deep]
        return {"deep": deep}

    @server.tool(structured_output=False)
    def rant(characters: int) -> str:
        """Return a long text."""
        return "!" * characters

    @server.tool()
    async def hang() -> str:
        """Take longer than anybody waits."""
        await asyncio.sleep(600)
        return "at last"

    @server.tool()
    async def learn(name: str, ctx: Context) -> str:
        """Learn another tool."""
        server.add_tool(lambda: name, name=name)
        await ctx.notify_tools_changed()
        return name

    return server
