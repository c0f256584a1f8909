"""Daemon threads for blocking work, never in the way of the end: one for a job, or a few for all.

The few are woken only when they are needed, as waking a thread costs more than a short job does. So one
thread, which leads, runs short jobs one after another; as soon as a job lasts, a watch lets another thread
lead. What jobs put off for company is flushed when no job is left, and by the watch. ``concurrent.futures``
would wake a thread for each job, and join its threads when the process ends: a handler that will not end
would keep the process alive.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from time import sleep

from broker_config.vital_thread import vital_thread

Job = Callable[[], object]

#: a job that takes longer than this no longer counts as short
SHORT_SECONDS = 0.005


class DaemonThreads:
    """Threads that run jobs; there are never more than jobs were running at one time, and one."""

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        #: the last one to fall asleep is woken first
        self._asleep: list[_Thread] = []
        self._leader: _Thread | None = None
        self._taken = 0
        self._jobs_wait = threading.Event()
        self.count = 0

    def start(self) -> None:
        """Start the watch."""
        vital_thread("goondan-threads-watch", self._watch).start()

    def run(self, job: Job, *, lasts: bool = False) -> None:
        """Run ``job`` soon, after the short ones that wait, or at once if it is known to last."""
        with self._lock:
            if lasts:
                self._idle_thread().take(job)
                return
            self._jobs.append(job)
            if self._leader is None:
                self._elect()
            elif not self._jobs_wait.is_set():
                self._jobs_wait.set()

    def step_aside(self) -> None:
        """Let another thread lead, if this one does: its job is about to wait."""
        with self._lock:
            if self._leader is threading.current_thread():
                self._leader = None
                if self._jobs:
                    self._elect()

    @property
    def idle(self) -> int:
        """How many threads sleep."""
        return len(self._asleep)

    def _elect(self) -> None:
        self._leader = self._idle_thread()
        self._leader.take(self._lead)

    def _idle_thread(self) -> "_Thread":
        if self._asleep:
            return self._asleep.pop()
        self.count += 1
        return _Thread(self._fall_asleep, f"goondan-call-{self.count}")

    def _fall_asleep(self, thread: "_Thread") -> None:
        self._flush()
        with self._lock:
            self._asleep.append(thread)

    def _lead(self) -> None:
        try:
            self._run_jobs()
        finally:
            self.step_aside()  # if a job has raised: nobody would lead

    def _run_jobs(self) -> None:
        while self._leader is threading.current_thread():
            try:
                job = self._jobs.popleft()
            except IndexError:
                self._flush()
                self._resign()
            else:
                self._taken += 1
                job()

    def _resign(self) -> None:
        with self._lock:
            if not self._jobs and self._leader is threading.current_thread():
                self._leader = None

    def _watch(self) -> None:
        taken, more = 0, 0
        while True:
            self._jobs_wait.wait()
            sleep(SHORT_SECONDS)
            self._flush()
            with self._lock:
                if not self._jobs:
                    self._jobs_wait.clear()
                is_stuck = self._taken == taken
                taken, more = self._taken, 2 * more + 1 if is_stuck else 0
                self._take_over(more)

    def _take_over(self, more: int) -> None:
        """Let a job's own thread run each of ``more`` jobs, and another thread lead the rest."""
        with contextlib.suppress(IndexError):  # whoever leads takes jobs at the same time
            for _ in range(more):
                job = self._jobs.popleft()
                self._idle_thread().take(job)
        if more and self._jobs:
            self._elect()


class _Thread(threading.Thread):
    """One thread; it sleeps until it is given a job."""

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
        """Run jobs for ever."""
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
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                loop.call_soon_threadsafe(then)

    threading.Thread(target=work, name="goondan-beside-loop", daemon=True).start()
