"""Daemon threads for blocking work: made when none is idle, and never in the way of the end.

``concurrent.futures`` joins its threads when the process ends; a handler that will not end would
keep the process alive.
"""

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class DaemonThreads:
    """Threads that run jobs; there are never more than jobs were running at one time."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self.count = 0

    def run(self, job: Job) -> None:
        """Run ``job`` on an idle thread, or on a new one."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self.count += 1
                name = f"goondan-call-{self.count}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._idle += 1
