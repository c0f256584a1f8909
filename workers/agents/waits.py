"""Waiting for other agents in the middle of a run, from ``async`` code and from plain code."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from workers.concurrency.places import Absence, NoAbsence, StepOut
from workers.concurrency.threads import Job


class Waits:
    """What one run waits for: while all of it does, it has no place.

    It takes one again when its last wait ends. A wait that begins before it has got one changes nothing.
    """

    def __init__(self, step_out: StepOut, is_over: Callable[[], bool]) -> None:
        self._step_out = step_out
        #: whether the run is cancelled, or past its limit
        self._is_over = is_over
        self._lock = threading.Lock()
        self._count = 0
        #: as long as the run has no place
        self._absence: Absence | None = None
        #: those of its waits that are over, and wait for a place
        self._returning: list[Job] = []

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Wait in here without a place.

        Raises:
            LimitError: too many calls of this worker wait.
        """
        self._begin()
        try:
            yield
        except asyncio.CancelledError:
            self._stay_out_if_over()
            raise
        finally:
            await self._returned()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Block this thread in here without a place; raises as :meth:`away` does."""
        self._begin()
        try:
            yield
        finally:
            back = threading.Event()
            if not self._end(back.set):
                back.wait()

    def _begin(self) -> None:
        with self._lock:
            if self._absence is None:
                # a run that was answered for has no place any more, and must not lend another's
                self._absence = NoAbsence() if self._is_over() else self._step_out()
            self._count += 1

    def _end(self, then: Job) -> bool:
        """Count one wait less; if it may not go on at once, ``then`` is called when it may."""
        with self._lock:
            self._count -= 1
            absence = self._absence
            if self._count or absence is None:
                return True
            self._returning.append(then)
            is_returning = len(self._returning) > 1
        if not is_returning:
            absence.end(self._arrive)
        return False

    def _arrive(self) -> None:
        with self._lock:
            self._absence = None
            waiting, self._returning = self._returning, []
        for then in waiting:
            then()

    async def _returned(self) -> None:
        """Come back; what is cancelled meanwhile comes back all the same, unless the run is over."""
        loop = asyncio.get_running_loop()
        back = asyncio.Event()
        if self._end(lambda: loop.call_soon_threadsafe(back.set)):
            return
        is_cancelled = False
        while not back.is_set():
            try:
                await back.wait()
            except asyncio.CancelledError:
                is_cancelled = True
                self._stay_out_if_over()
        if is_cancelled:
            raise asyncio.CancelledError

    def _stay_out_if_over(self) -> None:
        """Let a run that only has to end do that without a place: its time limit waits for nobody's."""
        with self._lock:
            absence = self._absence
            if absence is None or not self._is_over():
                return
        absence.give_up()
