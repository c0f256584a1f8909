"""Running servers, and how a test calls their tools."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from goondan_tasks.contract.messages import JsonObject
from tests.unit.workers.mcp.memory_api import MemoryApi
from tests.unit.workers.mcp.tool_contexts import Progress, context
from tests.waiting import wait_until
from workers.mcp import Board
from workers.mcp.agent_servers import McpServers
from workers.mcp.servers import RestartTimes

MOODY = Path(__file__).parents[3] / "moody_server.py"
QUICK = RestartTimes(
    connect=60, answer=1.5, idle=0.2, first_pause=0.05, longest_pause=0.2, between_reads=0.01, quiet=0
)
#: servers are not asked how they are, so that only what they say by themselves is known
UNASKED = replace(QUICK, idle=600)
SECONDS = 60.0


@dataclass
class Office:
    """Running servers, and the api that they were started with."""

    lives: Path = Path("/dev/null")
    api: MemoryApi = field(default_factory=MemoryApi)
    board: Board = field(default_factory=Board)
    progress: Progress = field(default_factory=Progress)
    #: the output of the calls
    emitted: list[Any] = field(default_factory=list)

    async def call(self, tool: str, **args: Any) -> Any:
        """Call a registered tool."""
        async with asyncio.timeout(SECONDS):
            return await self.api.tools.registered[tool].handler(
                context(self.progress, self.emitted.append), args
            )

    async def comes_true(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""
        await asyncio.to_thread(wait_until, condition, SECONDS)

    @property
    def pids(self) -> list[int]:
        """The processes of each life of the server, in order."""
        return [int(line) for line in self.lives.read_text(encoding="utf-8").split()]

    def state(self, server: str = "moody") -> tuple[bool, str | None]:
        """Return whether the server is up, and why not."""
        return next((record.is_up, record.reason) for record in self.board.records() if record.name == server)


@asynccontextmanager
async def opened(
    servers: JsonObject, patience: RestartTimes = QUICK, *, lives: Path = Path("/dev/null"), **fields: Any
) -> AsyncIterator[Office]:
    """Start servers, and stop them afterwards."""
    it = Office(lives)
    running = McpServers(it.api, it.board, patience)
    async with asyncio.timeout(3 * SECONDS):
        await running.start({"servers": servers, **fields})
        yield it
        await running.stop()


def moody(lives: Path, **fields: Any) -> JsonObject:
    return {"command": sys.executable, "args": [str(MOODY), str(lives)], **fields}
