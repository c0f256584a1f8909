"""A call that was submitted: ask how it stands, cancel it, wait for its result, or ``await`` it."""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from goondan_tasks.client.net import LOOK_SECONDS
from goondan_tasks.client.result_listener import ResultFuture
from goondan_tasks.errors import WaitTimeout
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.progress import Progress


@dataclass(frozen=True, slots=True)
class CallActions:
    """What a client lets its calls do, each by the call's id."""

    #: the future of the next result
    follow: Callable[[str], ResultFuture]
    #: wait for that future, so many seconds at most
    wait: Callable[[ResultFuture, float], None]
    #: while a task waits for one
    awaited: Callable[[], AbstractContextManager[None]]
    #: read the status, and resolve that future if there is a result
    look: Callable[[str], str]
    #: resolve the futures of all calls that have results, if it is time; say whether this one is unknown
    look_for_all: Callable[[str], bool]
    is_look_due: Callable[[], bool]
    cancel: Callable[[str], None]
    record: Callable[[str], CallRecord]


class PendingCall:
    """A submitted call. Waiting may be repeated, and done from any thread or event loop."""

    def __init__(self, call_id: str, actions: CallActions) -> None:
        self.id = call_id
        self._actions = actions
        self._future = actions.follow(call_id)

    def __repr__(self) -> str:
        return f"PendingCall({self.id!r})"

    def status(self) -> str:
        """Return ``queued``, ``running``, ``pending``, ``done`` or ``dead``.

        Raises:
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        return self._actions.look(self.id)

    def cancel(self) -> None:
        """Cancel the call: its result will be ``E_TOOL_CANCELLED``. Doing so twice is fine.

        A queued call ends at once and never runs, a running one ends as soon as its worker hears of it. One
        that its worker has had for a quarter of a second, and not begun, never begins.

        Raises:
            CallClosedError: it has its final result already.
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        self._actions.cancel(self.id)

    def progress(self) -> Progress | None:
        """Return what the handler has told last with ``ctx.progress``, if it has.

        Raises as :meth:`status` does.
        """
        return self._actions.record(self.id).progress

    def result(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Wait for the result, at most ``timeout`` seconds; ``None`` waits as long as it takes.

        A ``pending`` result is an interim record: it is returned too, as long as there is no final one,
        unless ``wait_pending`` says to go on waiting for that.

        Raises:
            WaitTimeout: only the waiting ended; the call goes on.
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if self._goes_on():
            self._actions.look(self.id)
        while True:
            self._actions.wait(self._future, _patience(end))
            is_over = end is not None and time.monotonic() >= end
            if not self._future.done():
                self._look(is_over)
            if self._has_ended(wait_pending):
                return self._future.result()
            if is_over:
                raise WaitTimeout(self.id, timeout or 0.0)

    async def wait(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Wait for the result without blocking the event loop; raises as :meth:`result` does."""
        end = None if timeout is None else time.monotonic() + timeout
        if self._goes_on():
            await asyncio.to_thread(self._actions.look, self.id)
        future = asyncio.wrap_future(self._future)
        while True:
            with self._actions.awaited():
                await asyncio.wait({future}, timeout=_patience(end))
            is_over = end is not None and time.monotonic() >= end
            if not self._future.done() and (is_over or self._actions.is_look_due()):
                await asyncio.to_thread(self._look, is_over)
            if self._has_ended(wait_pending):
                return self._future.result()
            if is_over:
                raise WaitTimeout(self.id, timeout or 0.0)
            if future.done():
                future = asyncio.wrap_future(self._future)

    def _look(self, is_over: bool) -> None:
        """Look for this call's result before the waiting ends; until then, for all that are waited for."""
        if is_over or self._actions.look_for_all(self.id):
            self._actions.look(self.id)

    def _has_ended(self, wait_pending: bool) -> bool:
        """Say whether the result that is waited for is there; after an interim one, follow the next."""
        return self._future.done() and not (wait_pending and self._goes_on())

    def _goes_on(self) -> bool:
        """Follow the result after an interim one; say whether there was one."""
        if not self._future.done() or self._future.result().status != "pending":
            return False
        self._future = self._future.following or self._actions.follow(self.id)
        return True

    def __await__(self) -> Generator[Any, None, ToolCallResult]:
        return self.wait().__await__()


def _patience(end: float | None) -> float:
    """Return how long to wait before looking again, in seconds."""
    return LOOK_SECONDS if end is None else max(0.0, min(LOOK_SECONDS, end - time.monotonic()))
