"""Daemon threads for blocking work.

They are not those of ``concurrent.futures``, which are joined at the end of the process: a handler that does
not end would keep the process alive.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

import structlog

from broker_config.vital_thread import vital_thread
from workers.outcome import FunctionOutcome, outcome_of

logger = structlog.get_logger(__name__)

Work = Callable[[], object]

#: seconds that one thread waits at most for the one before it
TURN_SECONDS = 1.0

#: seconds before another attempt to start a thread, after the system had no more
AGAIN_SECONDS = 0.5

#: a handler that takes longer than this, in seconds, keeps short ones waiting
SHORT_SECONDS = 0.005


class InOrder:
    """Orders threads: each enters its own and waits until the one made before it has ended.

    It is a context manager, entered once. The wait is no longer than :data:`TURN_SECONDS`.
    """

    def __init__(self, before: "InOrder | None" = None) -> None:
        self._before = before
        self._ended = threading.Event()

    def __enter__(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before._ended.wait(TURN_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_over(self) -> bool:
        """Whether the next thread may go on."""
        return self._ended.is_set()

    def end(self) -> None:
        """Let the next thread go on, even if this one has not waited."""
        self._before = None
        self._ended.set()


class DaemonThreads:
    """One thread for each piece of work that runs at a time; idle threads are reused.

    ``flush`` is called on a thread whose work has ended: it sends what work has put off.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        #: the thread that became idle last is woken first
        self._asleep: list[_Thread] = []
        #: the work for which no thread could be started
        self._unstarted: deque[Work] = deque()
        self._short: SimpleQueue[Work] = SimpleQueue()
        self.count = 0

    def start(self) -> None:
        """Start the thread for short work."""
        vital_thread("goondan-short-jobs", self._run_short_jobs).start()

    def run(self, work: Work) -> None:
        """Run ``work`` at once on a thread of its own, or when the system has a thread for it."""
        with self._lock:
            if self._asleep:
                thread = self._asleep.pop()
            else:
                self.count += 1
                thread = _Thread(self._fall_asleep, f"goondan-call-{self.count}")
        try:
            thread.take(work)
        except RuntimeError as error:  # the system has no more threads
            logger.warning("thread.not_started", reason=str(error))
            with self._lock:
                self.count -= 1
                self._unstarted.append(work)
            self._short.put(self._flush)  # wakes the thread for short work, which tries again

    def run_short(self, work: Work) -> None:
        """Run ``work``, which must not block, after the other short work: many pieces share one flush."""
        self._short.put(work)

    @property
    def idle(self) -> int:
        """How many threads are idle."""
        return len(self._asleep)

    def _fall_asleep(self, thread: "_Thread") -> None:
        self._flush()
        with self._lock:
            if not self._unstarted:
                self._asleep.append(thread)
                return
            work = self._unstarted.popleft()
        thread.take(work)

    def _run_short_jobs(self) -> None:
        while True:
            without_fault(self._run_short_job)

    def _run_short_job(self) -> None:
        try:
            work = self._short.get(timeout=AGAIN_SECONDS if self._unstarted else None)
        except Empty:
            work = self._start_again
        try:
            work()
        finally:
            if self._short.empty():
                self._flush()

    def _start_again(self) -> None:
        with self._lock:
            work = self._unstarted.popleft() if self._unstarted else None
        if work is not None:
            self.run(work)


class _Thread(threading.Thread):
    """One thread, which sleeps until it is given work."""

    def __init__(self, fall_asleep: Callable[["_Thread"], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._fall_asleep = fall_asleep
        self._work: Work | None = None
        #: a semaphore that :meth:`take` releases
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def take(self, work: Work) -> None:
        """Wake up for ``work``."""
        self._work = work
        self._wakeup.release()
        if not self.is_alive():
            self.start()

    def run(self) -> None:
        """Work forever."""
        while True:
            without_fault(self._run_work)
            self._fall_asleep(self)

    def _run_work(self) -> None:
        while True:
            self._wakeup.acquire()
            work, self._work = self._work, None
            if work is not None:
                work()
            self._fall_asleep(self)


def without_fault(work: Work) -> None:
    """Do a thread's work; a fault of ours is logged, and the thread goes on."""
    error = outcome_of(work).error
    if error is not None:
        logger.error("thread.fault", exc_info=error)


def on_new_thread(work: Work, then: Work | None = None) -> None:
    """Run ``work`` on a daemon thread of its own, and then ``then``, if any, on the caller's event loop."""
    loop = None if then is None else asyncio.get_running_loop()

    def both() -> None:
        without_fault(work)
        if loop is not None and then is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing waits
                loop.call_soon_threadsafe(then)

    threading.Thread(target=both, name="goondan-beside-loop", daemon=True).start()


T = TypeVar("T")


def coming_outcome(function: Callable[[], T]) -> Future[FunctionOutcome[T]]:
    """Call ``function``, which may hang and cannot be interrupted, on a separate thread."""
    ended = Future[FunctionOutcome[T]]()
    on_new_thread(lambda: ended.set_result(outcome_of(function)))
    return ended
