"""A call that was submitted: ask for its status, wait for its result, or ``await`` it."""

import asyncio
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

    def __init__(self, call_id: str, future: ResultFuture, look: Callable[[str], str]) -> None:
        self.id = call_id
        self._future = future
        self._look = look

    def __repr__(self) -> str:
        return f"PendingCall({self.id!r})"

    def status(self) -> str:
        """Return ``queued``, ``running``, ``pending``, ``done`` or ``dead``.

        Raises:
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        return "done" if self._future.done() else self._look(self.id)

    def result(self, timeout: float | None = None) -> ToolCallResult:
        """Wait for the result, at most ``timeout`` seconds; ``None`` waits as long as it takes.

        Raises:
            WaitTimeout: only the waiting ended; the call goes on.
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._future.result(timeout=_patience(end))
            except FutureTimeoutError:
                self._look(self.id)
                if end is not None and time.monotonic() >= end and not self._future.done():
                    raise WaitTimeout(self.id, timeout or 0.0) from None

    async def wait(self, timeout: float | None = None) -> ToolCallResult:
        """Wait for the result without blocking the event loop; raises as :meth:`result` does."""
        end = None if timeout is None else time.monotonic() + timeout
        future = asyncio.wrap_future(self._future)
        while True:
            done, _ = await asyncio.wait({future}, timeout=_patience(end))
            if done:
                return future.result()
            await asyncio.to_thread(self._look, self.id)
            if end is not None and time.monotonic() >= end and not self._future.done():
                raise WaitTimeout(self.id, timeout or 0.0)

    def __await__(self) -> Generator[Any, None, ToolCallResult]:
        return self.wait().__await__()


def _patience(end: float | None) -> float:
    """Return how long to wait before looking again, in seconds."""
    return LOOK_SECONDS if end is None else max(0.0, min(LOOK_SECONDS, end - time.monotonic()))
