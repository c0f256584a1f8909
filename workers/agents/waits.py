"""Waiting for tools and other agents in the middle of a run, which releases its slot meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager

from workers.concurrency.slots import KeptSlot, ReleasedSlot, ReleaseSlot, Wait
from workers.concurrency.threads import Work


class Waits:
    """The waits of one run: while all it does is wait, it has no slot.

    It takes one again when its last wait ends. A wait that begins before it has got one changes nothing.
    """

    def __init__(self, release_slot: ReleaseSlot, is_over: Callable[[], bool]) -> None:
        self._release_slot = release_slot
        #: whether the run is cancelled, or past its limit
        self._is_over = is_over
        self._lock = threading.Lock()
        self._count = 0
        #: as long as the run has no slot
        self._released_slot: ReleasedSlot | None = None
        #: those of its waits that are over, and wait for a slot
        self._returning: list[Work] = []

    @asynccontextmanager
    async def without_slot(self, wait: Wait = Wait.AGENT, *, is_async: bool) -> AsyncIterator[None]:
        """Release the run's slot in here; in plain code this blocks the thread.

        Raises:
            LimitError: too many calls of this worker wait.
        """
        self._begin(wait)
        try:
            yield
        except asyncio.CancelledError:
            self._stay_out_if_over()
            raise
        finally:
            back: Future[None] = Future()
            if not self._end(lambda: back.set_result(None)) and not back.done():
                await self._returned(back) if is_async else back.result()

    def _begin(self, wait: Wait) -> None:
        with self._lock:
            if self._released_slot is None:
                # a run that was answered for has no slot any more, and must not release another's
                self._released_slot = KeptSlot() if self._is_over() else self._release_slot(wait)
            self._count += 1

    def _end(self, then: Work) -> bool:
        """Count one wait less; if it may not go on at once, ``then`` is called when it may."""
        with self._lock:
            self._count -= 1
            released_slot = self._released_slot
            if self._count or released_slot is None:
                return True
            self._returning.append(then)
            is_returning = len(self._returning) > 1
        if not is_returning:
            released_slot.end(self._arrive)
        return False

    def _arrive(self) -> None:
        with self._lock:
            self._released_slot = None
            waiting, self._returning = self._returning, []
        for then in waiting:
            then()

    async def _returned(self, back: Future[None]) -> None:
        """Wait for a slot, also when this is cancelled meanwhile, unless the run is over."""
        is_cancelled = False
        waiting = asyncio.wrap_future(back)
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                is_cancelled = True
                self._stay_out_if_over()
        if is_cancelled:
            raise asyncio.CancelledError

    def _stay_out_if_over(self) -> None:
        """Let a run that is over end without a slot: its time limit must not wait for one."""
        with self._lock:
            released_slot = self._released_slot
            if released_slot is None or not self._is_over():
                return
        released_slot.give_up()
