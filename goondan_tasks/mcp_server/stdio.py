"""Serving one MCP client over stdin and stdout."""

import asyncio
import os
import signal

from mcp.server.stdio import stdio_server

from goondan_tasks.mcp_server.agent_server import AgentServer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_stdio(agent_server: AgentServer) -> None:
    """Serve until the client closes stdin; what it still waits for then is cancelled.

    stdout belongs to the protocol: whatever else is written there meanwhile goes to stderr.
    """
    asyncio.run(_serve(agent_server))


async def _serve(agent_server: AgentServer) -> None:
    loop = asyncio.get_running_loop()
    endings: list[asyncio.Task[None]] = []

    def end(number: int) -> None:
        if not endings:
            endings.append(loop.create_task(_end(agent_server, number)))

    for number in _SIGNALS:
        loop.add_signal_handler(number, end, number)
    server = agent_server.build()
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


async def _end(agent_server: AgentServer, number: int) -> None:
    await agent_server.calls.cancel_all()
    # a thread is blocked reading stdin, and an orderly end would wait for the client's next line
    os._exit(128 + number)
