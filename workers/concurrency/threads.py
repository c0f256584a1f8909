"""Daemon threads for blocking work, which never keep a process alive.

``concurrent.futures`` joins its threads when the process ends: a handler that will not end would keep the
process alive.
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

Job = Callable[[], object]

#: seconds that one thread waits at most for the one before it
TURN_SECONDS = 1.0

#: seconds until it is tried again to start a thread, if there were too many
AGAIN_SECONDS = 0.5

#: a handler that takes longer than this, in seconds, keeps short ones waiting
SHORT_SECONDS = 0.005


class InOrder:
    """Lets threads go on in the order in which they were made to wait, each once.

    It is a context manager; a thread before it that takes long is not waited for.
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
        """Whether the next one may go on."""
        return self._ended.is_set()

    def end(self) -> None:
        """Let the next one go on, also without having waited."""
        self._before = None
        self._ended.set()


class DaemonThreads:
    """A thread for each job that runs at one time; they wait between jobs, and are used again.

    ``flush`` is called on a thread whose job has ended: jobs may put off what is sent together.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        #: the thread that became idle last is woken first
        self._asleep: list[_Thread] = []
        #: jobs for which no thread could be started
        self._unstarted: deque[Job] = deque()
        self._short: SimpleQueue[Job] = SimpleQueue()
        self.count = 0

    def start(self) -> None:
        """Start the thread of short jobs."""
        vital_thread("goondan-short-jobs", self._run_short_jobs).start()

    def run(self, job: Job) -> None:
        """Run ``job`` at once, on a thread of its own; if none can be started, as soon as there is one."""
        with self._lock:
            if self._asleep:
                thread = self._asleep.pop()
            else:
                self.count += 1
                thread = _Thread(self._fall_asleep, f"goondan-call-{self.count}")
        try:
            thread.take(job)
        except RuntimeError as error:  # the system has no more threads
            logger.warning("thread.not_started", reason=str(error))
            with self._lock:
                self.count -= 1
                self._unstarted.append(job)
            self._short.put(self._flush)  # its thread tries again from now on

    def run_short(self, job: Job) -> None:
        """Run ``job``, which must not block, after the other short ones: many share one flush."""
        self._short.put(job)

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
            job = self._unstarted.popleft()
        thread.take(job)

    def _run_short_jobs(self) -> None:
        while True:
            without_fault(self._run_short_job)

    def _run_short_job(self) -> None:
        try:
            job = self._short.get(timeout=AGAIN_SECONDS if self._unstarted else None)
        except Empty:
            job = self._start_again
        try:
            job()
        finally:
            if self._short.empty():
                self._flush()

    def _start_again(self) -> None:
        with self._lock:
            job = self._unstarted.popleft() if self._unstarted else None
        if job is not None:
            self.run(job)


class _Thread(threading.Thread):
    """One thread; it waits until it is given a job."""

    def __init__(self, fall_asleep: Callable[["_Thread"], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._fall_asleep = fall_asleep
        self._job: Job | None = None
        self._bed = threading.Lock()
        self._bed.acquire()

    def take(self, job: Job) -> None:
        """Wake up for ``job``."""
        self._job = job
        self._bed.release()
        if not self.is_alive():
            self.start()

    def run(self) -> None:
        """Run jobs forever."""
        while True:
            without_fault(self._run_jobs)
            self._fall_asleep(self)

    def _run_jobs(self) -> None:
        while True:
            self._bed.acquire()
            job, self._job = self._job, None
            if job is not None:
                job()
            self._fall_asleep(self)


def without_fault(work: Job) -> None:
    """Do a thread's work; its last boundary: a fault of ours is logged, and the thread goes on."""
    error = outcome_of(work).error
    if error is not None:
        logger.error("thread.fault", exc_info=error)


def on_new_thread(job: Job, then: Job | None = None) -> None:
    """Run ``job`` on a daemon thread of its own, and ``then``, if any, on the event loop that asks for it."""
    loop = None if then is None else asyncio.get_running_loop()

    def work() -> None:
        without_fault(job)
        if loop is not None and then is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nothing waits any more
                loop.call_soon_threadsafe(then)

    threading.Thread(target=work, name="goondan-beside-loop", daemon=True).start()


T = TypeVar("T")


def coming_outcome(function: Callable[[], T]) -> Future[FunctionOutcome[T]]:
    """Call ``function`` on a separate thread: it may hang and cannot be interrupted."""
    ended = Future[FunctionOutcome[T]]()
    on_new_thread(lambda: ended.set_result(outcome_of(function)))
    return ended
