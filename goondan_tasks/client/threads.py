"""The threads on which an asyncio program's client makes its trips to Redis."""

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from goondan_tasks.contract.errors import BrokerUnreachableError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: how many trips are made at once; in an outage each takes as long as it is retried
MOST_THREADS = 16

#: a thread without work ends after this many seconds
IDLE_SECONDS = 60.0

_Work = tuple[Future[Any], Callable[[], Any]]


class ClientThreads:
    """At most MOST_THREADS daemon threads, started when they are needed.

    The default executor of the event loop belongs to the program: trips that are retried during an outage
    would keep the program's own ``asyncio.to_thread`` waiting, and its end as well.
    """

    def __init__(self, name: str = "goondan-client") -> None:
        self._name = name
        self._reset()

    def _reset(self) -> None:
        """Begin without threads: at first, and in a forked process, which has none of them."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._crew = _Crew(self._name)

    def run(
        self, function: Callable[Parameters, Result], /, *args: Parameters.args, **fields: Parameters.kwargs
    ) -> asyncio.Future[Result]:
        """Call ``function`` on one of the threads, in a copy of the current context; return its future.

        The call is on its way when this returns: a task would end unstarted if the program ends its loop.
        """
        return asyncio.wrap_future(self._taken(partial(function, *args, **fields)))

    async def run_within(self, seconds: float, function: Callable[[], Result]) -> Result:
        """Call ``function`` as :meth:`run` does, if a thread is free within so many seconds.

        Raises:
            BrokerUnreachableError: none was, because earlier trips still wait for Redis, or take long.
        """
        running, is_late = self._taken(function), False

        def give_up() -> None:
            nonlocal is_late
            is_late = not running.cancelled() and running.cancel()

        timer = asyncio.get_running_loop().call_later(seconds, give_up)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if is_late:
                raise BrokerUnreachableError(
                    f"The request did not begin within {seconds:g} s: all {MOST_THREADS} threads of the "
                    "client wait for Redis, or make long trips."
                ) from None
            raise
        finally:
            timer.cancel()

    def _taken(self, function: Callable[[], Result]) -> Future[Result]:
        context = contextvars.copy_context()
        running: Future[Result] = Future()
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            self._crew.take((running, partial(context.run, function)))
        return running

    def close(self) -> None:
        """End the threads as soon as they have no more work; later work starts new ones."""
        with self._lock:
            crew, self._crew = self._crew, _Crew(self._name)
            crew.end()


class _Crew:
    """Threads with one queue; ``take`` and ``end`` are called under one lock, and nothing after ``end``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        #: released by each thread that waits for work
        self._idle = threading.Semaphore(0)
        #: released by each thread that has ended
        self._free = threading.Semaphore(MOST_THREADS)

    def take(self, work: _Work) -> None:
        self._work.put(work)
        if not self._idle.acquire(blocking=False) and self._free.acquire(blocking=False):
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def end(self) -> None:
        for _ in range(MOST_THREADS):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            running, call = work
            if running.set_running_or_notify_cancel():
                _settle(running, call)
            del work, running, call  # else they stay as long as this thread waits
        self._free.release()

    def _next(self) -> _Work | None:
        """Return the next work; ``None`` if there is none for IDLE_SECONDS, or after the end."""
        with contextlib.suppress(queue.Empty):
            return self._work.get_nowait()
        self._idle.release()
        while True:
            try:
                return self._work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                if self._idle.acquire(blocking=False):  # else work is on its way to this thread
                    return None


def _settle(running: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
        running.set_exception(error)
    else:
        running.set_result(result)
