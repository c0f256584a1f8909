"""Waiting for other agents in the middle of a run, from ``async`` code and from plain code."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from workers.places import Absence, StepOut


class Waits:
    """What one run waits for. It has no place from its first wait until none is left."""

    def __init__(self, step_out: StepOut) -> None:
        self._step_out = step_out
        self._lock = threading.Lock()
        self._count = 0
        self._absence: Absence | None = None

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Wait in here without a place.

        Raises:
            LimitError: too many calls of this worker wait.
        """
        self._begin()
        try:
            yield
        finally:
            absence = self._end()
            if absence is not None:
                await _returned(absence)

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Block this thread in here without a place; raises as :meth:`away` does."""
        self._begin()
        try:
            yield
        finally:
            absence = self._end()
            if absence is not None:
                back = threading.Event()
                absence.end(back.set)
                back.wait()

    def _begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._absence = self._step_out()
            self._count += 1

    def _end(self) -> Absence | None:
        """Count one wait less; return the absence if it was the last."""
        with self._lock:
            self._count -= 1
            return None if self._count else self._absence


async def _returned(absence: Absence) -> None:
    """Come back; a run that is cancelled meanwhile comes back all the same, to end in its place."""
    loop = asyncio.get_running_loop()
    back = asyncio.Event()
    absence.end(lambda: loop.call_soon_threadsafe(back.set))
    is_cancelled = False
    while not back.is_set():
        try:
            await back.wait()
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError
