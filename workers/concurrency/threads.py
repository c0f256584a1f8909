"""Daemon threads for blocking work, which never keep a process alive.

``concurrent.futures`` joins its threads when the process ends: a handler that will not end would keep the
process alive.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar

import structlog

from broker_config.vital_thread import vital_thread

logger = structlog.get_logger(__name__)

Job = Callable[[], object]

#: seconds that one thread waits at most for the one before it
TURN_SECONDS = 1.0

#: a handler that takes longer than this, in seconds, keeps short ones waiting
SHORT_SECONDS = 0.005


class InOrder:
    """Lets threads go on in the order in which they were made to wait, each once.

    It is a context manager; a thread before it that takes long is not waited for.
    """

    def __init__(self, before: "InOrder | None" = None) -> None:
        self._before = before
        self._is_over = threading.Event()

    def __enter__(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before._is_over.wait(TURN_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let the next one go on, also without having waited."""
        self._before = None
        self._is_over.set()


class DaemonThreads:
    """A thread for each job that runs at one time; they wait between jobs, and are used again.

    ``flush`` is called on a thread whose job has ended: jobs may put off what is sent together.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        #: the thread that became idle last is woken first
        self._asleep: list[_Thread] = []
        self._short: SimpleQueue[Job] = SimpleQueue()
        self.count = 0

    def start(self) -> None:
        """Start the thread of short jobs."""
        vital_thread("goondan-short-jobs", self._run_short_jobs).start()

    def run(self, job: Job) -> None:
        """Run ``job`` at once, on a thread of its own."""
        with self._lock:
            if self._asleep:
                thread = self._asleep.pop()
            else:
                self.count += 1
                thread = _Thread(self._fall_asleep, f"goondan-call-{self.count}")
        thread.take(job)

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
            self._asleep.append(thread)

    def _run_short_jobs(self) -> None:
        while True:
            error = outcome_of(self._short.get()).error
            if error is not None:
                logger.error("short_job.fault", exc_info=error)
            if self._short.empty():
                self._flush()


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
            self._bed.acquire()
            job, self._job = self._job, None
            if job is not None:
                job()
            self._fall_asleep(self)


def on_new_thread(job: Job, then: Job | None = None) -> None:
    """Run ``job`` on a daemon thread of its own, and ``then``, if any, on the event loop that asks for it."""
    loop = None if then is None else asyncio.get_running_loop()

    def work() -> None:
        job()
        if loop is not None and then is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nothing waits any more
                loop.call_soon_threadsafe(then)

    threading.Thread(target=work, name="goondan-beside-loop", daemon=True).start()


T = TypeVar("T")


class FunctionOutcome(Generic[T]):
    """What a function returned, or whatever it raised."""

    __slots__ = ("_value", "error")

    def __init__(self) -> None:
        self._value: Any = None
        self.error: BaseException | None = None

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        value: T = self._value
        return value

    def note(self, value: T) -> None:
        """Keep the value."""
        self._value = value

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True


def outcome_of(function: Callable[[], T]) -> FunctionOutcome[T]:
    """Call ``function``; nothing is raised here, not even what ends a process."""
    outcome: FunctionOutcome[T] = FunctionOutcome()  # a parametrized generic costs time here
    with outcome:
        outcome.note(function())
    return outcome


def coming_outcome(function: Callable[[], T]) -> Future[FunctionOutcome[T]]:
    """Call ``function`` on a separate thread: it may hang and cannot be interrupted."""
    ended = Future[FunctionOutcome[T]]()
    on_new_thread(lambda: ended.set_result(outcome_of(function)))
    return ended
