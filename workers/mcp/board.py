"""How the MCP servers of this process fare, for whoever reports of the process."""

import functools
import os

from goondan_tasks.roster import McpServerRecord


class Board:
    """The latest record of each server. Any thread may read it."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], McpServerRecord] = {}

    def post(self, record: McpServerRecord) -> None:
        """Put a server's record in the place of its last one."""
        self._records = {**self._records, (record.agent, record.name): record}

    def take_down(self, agent: str, name: str) -> None:
        """Remove the record of a server that nobody supervises any more."""
        self._records = {key: record for key, record in self._records.items() if key != (agent, name)}

    def records(self) -> tuple[McpServerRecord, ...]:
        """Return the records in the order of the servers' names."""
        return tuple(record for _, record in sorted(self._records.items()))


@functools.cache
def process_board() -> Board:
    """Return the board of this process; a forked child has its own."""
    return Board()


os.register_at_fork(after_in_child=process_board.cache_clear)
