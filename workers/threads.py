"""Daemon threads for blocking work, woken only when they are needed, and never in the way of the end.

Waking a thread costs more than a short job does. So short jobs are run one after another by one
thread; as soon as a job lasts, a watch lets other threads take over what waits behind it. What jobs put
off for company is flushed when no job is left, and by the watch.
``concurrent.futures`` would wake a thread for each job, and join its threads when the process ends: a
handler that will not end would keep the process alive.
"""

import threading
from collections import deque
from collections.abc import Callable
from time import sleep

Job = Callable[[], None]

#: a job that takes longer than this no longer counts as short
SHORT_SECONDS = 0.005


class DaemonThreads:
    """Threads that run jobs; there are never more than jobs were running at one time."""

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        #: threads that sleep, each on a lock of its own; the last one to fall asleep is woken first
        self._asleep: list[threading.Lock] = []
        self._awake = 0
        self._taken = 0
        self._jobs_wait = threading.Event()
        self.count = 0

    def start(self) -> None:
        """Start the watch."""
        threading.Thread(target=self._watch, name="goondan-threads-watch", daemon=True).start()

    def run(self, job: Job, *, lasts: bool = False) -> None:
        """Run ``job`` soon: after the short ones that wait, or at once if it is known to last."""
        with self._lock:
            if lasts:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            if lasts or not self._awake:
                self._wake()
            elif not self._jobs_wait.is_set():
                self._jobs_wait.set()

    def _wake(self) -> None:
        self._awake += 1
        if self._asleep:
            self._asleep.pop().release()
            return
        self.count += 1
        threading.Thread(target=self._work, name=f"goondan-call-{self.count}", daemon=True).start()

    def _work(self) -> None:
        bed = threading.Lock()
        bed.acquire()
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                self._flush()
                self._sleep(bed)
            else:
                self._taken += 1
                job()

    def _sleep(self, bed: threading.Lock) -> None:
        with self._lock:
            if self._jobs:
                return
            self._awake -= 1
            self._asleep.append(bed)
        bed.acquire()

    def _watch(self) -> None:
        """Wake threads while jobs wait and none is taken: one more, then two, four, and so on."""
        taken, more = 0, 1
        while True:
            self._jobs_wait.wait()
            sleep(SHORT_SECONDS)
            self._flush()
            with self._lock:
                if not self._jobs:
                    self._jobs_wait.clear()
                is_stuck = self._taken == taken
                taken, more = self._taken, 2 * more if is_stuck else 1
                if is_stuck:
                    for _ in range(min(more, len(self._jobs))):
                        self._wake()
