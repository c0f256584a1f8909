"""MCP clients of the official SDK at a ``goondan mcp-server``, over stdio and over HTTP."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import PROGRAM, environment, start

Door = Literal["stdio", "http"]
#: with the handshake up to 2025-11-25, and without it
Mode = Literal["legacy", "auto"]

PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Doors:
    """A stack, and a server at its door."""

    stack: LocalStack
    url: str

    @asynccontextmanager
    async def client(self, door: Door, mode: Mode, *options: str, **fields: Any) -> AsyncIterator[Client]:
        """Connect a client; over stdio it starts a server of its own, with these options."""
        server: Any = self.url if door == "http" else self.command(*options)
        async with Client(server, mode=mode, read_timeout_seconds=PATIENCE, **fields) as client:
            yield client

    def command(self, *options: str) -> StdioServerParameters:
        """Say how a client starts a server."""
        _, *arguments = PROGRAM
        return StdioServerParameters(
            command=sys.executable,
            args=[*arguments, "mcp-server", "--agent", "smith", *options],
            env=environment(redis_url=self.stack.redis_url),
        )


@contextmanager
def serving(stack: LocalStack, *options: str, **settings: object) -> Iterator[str]:
    """Run ``goondan mcp-server --http`` for the length of a ``with`` block; yield its URL."""
    process = start(
        *("mcp-server", "--agent", "smith", "--http", "--port", "0", "--json", *options),
        env=environment(redis_url=stack.redis_url, **settings),
        errors=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            document = "".join(iter(process.stdout.readline, "}\n")) + "}"
            yield json.loads(document)["url"]
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


@asynccontextmanager
async def with_token(url: str, token: str) -> AsyncIterator[Client]:
    """Connect over HTTP and show a token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode="legacy") as client:
            yield client


@contextmanager
def raw_server(stack: LocalStack) -> Iterator["subprocess.Popen[str]"]:
    """Run a server on stdio whose streams the test reads and writes."""
    with subprocess.Popen(
        [*PROGRAM, "mcp-server", "--agent", "smith"],
        env=environment(redis_url=stack.redis_url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def say(server: "subprocess.Popen[str]", **message: Any) -> None:
    """Send a message of JSON-RPC to a server on stdio."""
    assert server.stdin is not None
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()
