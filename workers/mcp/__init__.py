"""MCP servers as a source of tools. This module lists the servers of this process, for status reports.

It does not need the package ``mcp``.
"""

import functools
import os
from collections.abc import Iterable
from typing import Protocol

from goondan_tasks.fleet.agent_registry import McpServerRecord
from workers.mcp.suspended import SuspendedCalls


class Servers(Protocol):
    """The servers of one agent."""

    def records(self) -> Iterable[McpServerRecord]:
        """Return the status of each server; callable from any thread."""


class Board:
    """The servers of every agent that this process serves."""

    def __init__(self) -> None:
        self._all: tuple[Servers, ...] = ()
        #: where calls wait for tasks of servers; ``None`` in a process that is no worker
        self.suspended: SuspendedCalls | None = None

    def put(self, servers: Servers) -> None:
        """Add an agent's servers."""
        self._all = (*self._all, servers)

    def remove(self, servers: Servers) -> None:
        """Remove an agent's servers."""
        self._all = tuple(one for one in self._all if one is not servers)

    def records(self) -> tuple[McpServerRecord, ...]:
        """Return the status of every server."""
        return tuple(record for servers in self._all for record in servers.records())


@functools.cache
def process_board() -> Board:
    """Return the board of this process; a forked child has its own."""
    return Board()


os.register_at_fork(after_in_child=process_board.cache_clear)
