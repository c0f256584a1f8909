"""An onion that is held open at its core, while something goes on that is no function to be called there.

By then the middlewares have done what they do before ``next()``; what they do after it they do at the end.
In plain code plain middlewares run on the caller's thread; with ``async`` ones all goes on on the event loop.
"""

import asyncio
from collections.abc import Coroutine, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from goondan_tasks.errors import MiddlewareError
from workers.concurrency.event_loop import EventLoopThread

#: how long middlewares may take on each side of ``next()``
MOST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CoreOutcome:
    """What comes of the core: a result, or an error."""

    result: Any = None
    error: Exception | None = None

    def value(self) -> Any:
        """Return the result.

        Raises:
            Exception: the error.
        """
        if self.error is not None:
            raise self.error
        return self.result


class _Pause:
    def __await__(self) -> Generator[None, CoreOutcome, CoreOutcome]:
        return (yield)


class HeldOnion:
    """One way through an onion and back, in plain code or in ``async`` code."""

    def __init__(self, event_loop: EventLoopThread) -> None:
        self._event_loop = event_loop
        #: the way, as long as it is gone by hand
        self._chain: Coroutine[Any, Any, Any] | None = None
        self._at_core: Future[None] = Future()
        self._outcome: Future[CoreOutcome] = Future()
        #: the way, if it goes on on the event loop
        self._ended: Future[Any] = Future()

    async def pause(self) -> Any:
        """Wait at the core for what comes of it; this is for the core."""
        self._at_core.set_result(None)
        if self._chain is not None:
            return (await _Pause()).value()
        # a middleware may give up waiting for its next(), but not whoever brings the outcome
        return (await asyncio.shield(asyncio.wrap_future(self._outcome))).value()

    def enter(self, chain: Coroutine[Any, Any, Any]) -> None:
        """Go as far as the core; this blocks.

        Raises:
            MiddlewareError: the middlewares do not lead there, or take too long.
            Exception: one of them raises it.
        """
        self._chain = chain
        try:
            chain.send(None)
        except StopIteration as stop:
            raise _not_opened() from stop
        if not self._at_core.done():  # it wants to go on on the event loop
            self._chain = None
            self._ended = self._event_loop.submit(chain)
            wait([self._at_core, self._ended], timeout=MOST_SECONDS, return_when=FIRST_COMPLETED)
            self._require_core()

    def leave(self, outcome: CoreOutcome) -> Any:
        """Go back with what came of the core, and return what the middlewares make of it; this blocks.

        Raises as :meth:`enter`; an error that no middleware catches comes out again.
        """
        if self._chain is None:
            self._outcome.set_result(outcome)
            wait([self._ended], timeout=MOST_SECONDS)
            return self._result()
        try:
            self._chain.send(outcome)
        except StopIteration as stop:
            return stop.value
        self.break_off()
        raise MiddlewareError("A plain middleware awaits something after next(); make it `async def`.")

    def break_off(self) -> None:
        """Let the middlewares clean up, and expect nothing of them."""
        if self._chain is None:
            self._ended.cancel()
        else:
            self._chain.close()

    async def enter_async(self, chain: Coroutine[Any, Any, Any]) -> None:
        """Go as far as the core; see :meth:`enter`."""
        self._ended = self._event_loop.submit(chain)
        await self._first_of(self._at_core, self._ended)
        self._require_core()

    async def leave_async(self, outcome: CoreOutcome) -> Any:
        """Go back; see :meth:`leave`."""
        self._outcome.set_result(outcome)
        await self._first_of(self._ended)
        return self._result()

    async def _first_of(self, *futures: "Future[Any]") -> None:
        """Wait for one of ``futures``, but not for ever; break off if this is cancelled."""
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()
        for future in futures:
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(is_done.set))
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await is_done.wait()
        except TimeoutError:
            return  # whoever looks at them sees it
        except asyncio.CancelledError:
            self.break_off()
            raise

    def _require_core(self) -> None:
        if not self._at_core.done():
            self._result()
            raise _not_opened()

    def _result(self) -> Any:
        if not self._ended.done():
            self.break_off()
            raise MiddlewareError(f"The step middlewares took longer than {MOST_SECONDS:g} s.")
        return self._ended.result()


def _not_opened() -> MiddlewareError:
    return MiddlewareError("A step middleware did not call next(), so the Step has not opened.")
