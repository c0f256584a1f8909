"""A call that was submitted: ask for its status, wait for its result, or ``await`` it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from goondan_tasks.client.result_listener import ResultFuture
from goondan_tasks.errors import WaitTimeout
from goondan_tasks.messages import ToolCallResult

#: how often a waiter looks for itself, in case a notification was missed or no worker is alive
LOOK_SECONDS = 2.0


class PendingCall:
    """A submitted call. Waiting may be repeated, and done from any thread or event loop."""

    def __init__(
        self, call_id: str, follow: Callable[[str], ResultFuture], look: Callable[[str], str]
    ) -> None:
        self.id = call_id
        self._follow = follow
        self._look = look
        self._future = follow(call_id)

    def __repr__(self) -> str:
        return f"PendingCall({self.id!r})"

    def status(self) -> str:
        """Return ``queued``, ``running``, ``pending``, ``done`` or ``dead``.

        Raises:
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        return self._look(self.id)

    def result(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Wait for the result, at most ``timeout`` seconds; ``None`` waits as long as it takes.

        A ``pending`` result is an interim record: it is returned too, unless ``wait_pending`` says to go
        on waiting for the final one.

        Raises:
            WaitTimeout: only the waiting ended; the call goes on.
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with contextlib.suppress(FutureTimeoutError):
                self._future.result(timeout=_patience(end))
            if not self._future.done():
                self._look(self.id)
            if self._has_ended(wait_pending):
                return self._future.result()
            if end is not None and time.monotonic() >= end:
                raise WaitTimeout(self.id, timeout or 0.0)

    async def wait(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Wait for the result without blocking the event loop; raises as :meth:`result` does."""
        end = None if timeout is None else time.monotonic() + timeout
        future = asyncio.wrap_future(self._future)
        while True:
            await asyncio.wait({future}, timeout=_patience(end))
            if not self._future.done():
                await asyncio.to_thread(self._look, self.id)
            if self._has_ended(wait_pending):
                return self._future.result()
            if end is not None and time.monotonic() >= end:
                raise WaitTimeout(self.id, timeout or 0.0)
            if future.done():
                future = asyncio.wrap_future(self._future)

    def _has_ended(self, wait_pending: bool) -> bool:
        """Say whether the result that is waited for is there; after an interim one, follow the next."""
        if not self._future.done():
            return False
        if wait_pending and self._future.result().status == "pending":
            self._future = self._follow(self.id)
            return False
        return True

    def __await__(self) -> Generator[Any, None, ToolCallResult]:
        return self.wait().__await__()


def _patience(end: float | None) -> float:
    """Return how long to wait before looking again, in seconds."""
    return LOOK_SECONDS if end is None else max(0.0, min(LOOK_SECONDS, end - time.monotonic()))
