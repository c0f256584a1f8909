"""The pending calls of agents whose MCP servers work on them as tasks, in Redis.

Which call waits for which task is the handle of the call, so any worker of the agent can ask the server. This
module does not need the package ``mcp``.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from broker_config.connections import rows_of
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    PayloadTooLargeError,
    ToolCancelledError,
    ToolError,
    ToolExpiredError,
)
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.output import encoded_output
from goondan_tasks.ledger.completions import Completions
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Outcome

#: how many records are read in one trip
_AT_ONCE = 1_000
_PREFIX = "mcp-task"
#: the ends of a call that are not the end of its task
_GIVEN_UP = frozenset({ToolCancelledError.code, ToolExpiredError.code})


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task of an MCP server, by the server's name in the agent's config."""

    server: str
    id: str

    @property
    def handle(self) -> str:
        """The handle of the call that waits for it."""
        return f"{_PREFIX}:{self.server}:{self.id}"

    @classmethod
    def of(cls, handle: str) -> Self | None:
        """Read a handle; ``None`` if it is one of another kind."""
        prefix, _, rest = handle.partition(":")
        server, _, task_id = rest.partition(":")
        return cls(server, task_id) if prefix == _PREFIX and server and task_id else None


class SuspendedCalls:
    """The calls that wait for tasks. Every method may raise ``redis.exceptions.RedisError``."""

    def __init__(self, ledger: Ledger, reaper: Reaper) -> None:
        self._redis, self._keys, self._settings = ledger.redis, ledger.keys, ledger.settings
        self._ledger = ledger
        self._completions = Completions(ledger, reaper)
        #: of each pending call: when it expires, which changes if it waits again, and its task
        self._known: dict[str, tuple[float, RemoteTask | None]] = {}

    def waiting(self, agent: str) -> dict[str, RemoteTask]:
        """Return the tasks that an agent's calls wait for, by the ids of the calls."""
        found: Any = self._redis.zrange(self._keys.pending(agent), 0, -1, withscores=True)
        expiries = {call_id.decode(errors="replace"): expiry for call_id, expiry in found}
        known = {
            call_id: one
            for call_id, one in self._known.items()
            if call_id in expiries and one[0] == expiries[call_id]
        }
        new = [call_id for call_id in expiries if call_id not in known]
        for begin in range(0, len(new), _AT_ONCE):
            some = new[begin : begin + _AT_ONCE]
            for call_id, task in zip(some, self._tasks_of(some), strict=True):
                known[call_id] = (expiries[call_id], task)
        self._known = known
        return {call_id: task for call_id in expiries if (task := known[call_id][1]) is not None}

    def _tasks_of(self, call_ids: Sequence[str]) -> Iterator[RemoteTask | None]:
        with self._redis.pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.hmget(self._keys.call(call_id), "status", "handle")
            rows = rows_of(pipe)
        for row in rows:
            status, handle = row or (None, None)
            if status == b"pending" and handle:
                yield RemoteTask.of(handle.decode(errors="replace"))
            else:
                yield None

    def take(self, call_ids: Sequence[str], seconds: float) -> set[str]:
        """Reserve the next question about the task of each call; other workers are refused for that time.

        Return the ids of those that nobody had reserved.
        """
        with self._redis.pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.set(self._keys.mcp_task(call_id), "", nx=True, px=max(1, round(seconds * 1000)))
            rows = rows_of(pipe)
        return {call_id for call_id, row in zip(call_ids, rows, strict=True) if row}

    def put_off(self, call_id: str, seconds: float) -> None:
        """Say when the task is to be asked about again."""
        self._redis.pexpire(self._keys.mcp_task(call_id), max(1, round(seconds * 1000)))

    def is_given_up(self, call_id: str) -> bool:
        """Return whether a call that no longer waits was cancelled, or has expired."""
        record = self._ledger.record(call_id)
        return record is not None and record.error is not None and record.error.code in _GIVEN_UP

    def complete(self, call_id: str, output: Any) -> None:
        """End a call with its output; one that has ended meanwhile stays as it is."""
        try:
            data, told = encoded_output(output, "The result of the task")
            if len(data) > self._settings.max_output_bytes:
                raise PayloadTooLargeError(
                    f"The result of the task takes {len(data)} bytes; "
                    f"at most {self._settings.max_output_bytes} are allowed."
                )
        except (ToolError, PayloadTooLargeError) as error:
            self.fail(call_id, error)
        else:
            self._end(call_id, Outcome(told))

    def fail(self, call_id: str, error: Exception) -> None:
        """End a call with an error; one that has ended meanwhile stays as it is."""
        self._end(call_id, Outcome(error=describe(error, help_url=self._settings.help_url)))

    def _end(self, call_id: str, outcome: Outcome) -> None:
        with contextlib.suppress(CallClosedError, CallNotFoundError, CallNotPendingError):
            self._completions.complete(call_id, outcome, "mcp")
